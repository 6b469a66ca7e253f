name=nvidia-uvm
version=@V@
supported=external
license=@LICENSE@
depends=nvidia
size=1540096
