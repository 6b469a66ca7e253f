name=nvidia-modeset
version=@V@
supported=external
license=@LICENSE@
depends=nvidia
size=1327104
