name=i2c-algo-bit
license=GPL
depends=
size=16384
