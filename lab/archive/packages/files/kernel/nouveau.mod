name=nouveau
license=GPL and additional rights
description=nVidia Riva/TNT/GeForce/Quadro/Tesla/Tegra K1+
author=Nouveau Project
firmware=nvidia/gv100/gr/sw_method_init.bin
alias=pci:v000012D2d*sv*sd*bc03sc*i*
alias=pci:v000010DEd*sv*sd*bc03sc*i*
depends=drm,drm_kms_helper,ttm,i2c-algo-bit,video,mxm-wmi,wmi
parm=modeset:enable driver (default: auto, 0 = disabled, 1 = enabled, 2 = headless) (int)
parm=config:option string to pass to driver core (charp)
size=2433024
