.DEFAULT_GOAL := help
.PHONY: help demo test check bench up down

help:
	@python3 dev.py help
demo:
	@python3 dev.py demo
test:
	@python3 dev.py test
check:
	@python3 dev.py check
bench:
	@python3 dev.py bench engine
up:
	@python3 dev.py up
down:
	@python3 dev.py down
