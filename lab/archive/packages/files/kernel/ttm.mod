name=ttm
license=GPL
depends=drm
size=86016
