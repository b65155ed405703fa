from sglang_hybrid.shadow.process import main

main()
