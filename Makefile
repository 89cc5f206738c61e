.DEFAULT_GOAL := help
.PHONY: help demo test check bench up down

help:  ## this list
	@python3 dev.py help
demo:  ## the whole path on real input
	@python3 dev.py demo
test:  ## every check, every test but the long ones
	@python3 dev.py test
check: ## what needs no broker
	@python3 dev.py check
bench: ## the engine compared with its peers
	@python3 dev.py bench engine
up:    ## broker and workers that keep running
	@python3 dev.py up
down:  ## stop them
	@python3 dev.py down
