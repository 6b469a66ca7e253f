name=drm_kms_helper
license=GPL
depends=drm
size=311296
