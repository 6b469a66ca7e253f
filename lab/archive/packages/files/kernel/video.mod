name=video
license=GPL
depends=
size=65536
