name=wmi
license=GPL
depends=
size=32768
