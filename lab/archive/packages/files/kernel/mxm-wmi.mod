name=mxm-wmi
license=GPL
depends=wmi
size=16384
