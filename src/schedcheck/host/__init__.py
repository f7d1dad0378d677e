"""Running elsewhere: environments for engines, worker processes, and who watches over them."""
