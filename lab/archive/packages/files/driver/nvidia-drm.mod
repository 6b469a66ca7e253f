name=nvidia-drm
version=@V@
supported=external
license=@LICENSE@
depends=nvidia-modeset,drm_kms_helper,drm
parm=modeset:Enable atomic kernel modesetting (1 = enable, 0 = disable (default)) (bool)
size=90112
