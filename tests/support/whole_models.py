"""What large models reach under keep-everything, and therefore under every plan."""

IMAGES = "synthetic:3x32x32:10"
RESNET18_SHA256 = "92ee030fc35c2b095598527d51325df92a3fa771b39053f084cd382b85f60328"  # 3 steps
