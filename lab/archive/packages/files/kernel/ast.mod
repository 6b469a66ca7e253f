name=ast
license=GPL
alias=pci:v00001A03d00002000sv*sd*bc03sc*i*
depends=drm_kms_helper,drm,i2c-algo-bit
size=57344
