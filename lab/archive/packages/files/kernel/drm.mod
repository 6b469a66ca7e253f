name=drm
license=GPL
depends=
size=622592
