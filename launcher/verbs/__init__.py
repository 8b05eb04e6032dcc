"""What can be done with runs, a module for each verb with `main(arguments) -> exit code`. Each imports only its own."""
