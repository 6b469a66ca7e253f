name=nvidia-peermem
version=@V@
supported=external
license=@LICENSE@
depends=nvidia
size=16384
