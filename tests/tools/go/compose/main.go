// Reads a compose file as `docker compose config` does, with the library that it uses, and prints the project as JSON.
//
// A file that compose would refuse ends it with exit code 1 and the reason. It needs no container engine and starts
// nothing. The environment of the caller is not read, so that the answer depends on the file alone.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: compose FILE")
		os.Exit(2)
	}
	if err := show(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func show(path string) error {
	options, err := cli.NewProjectOptions([]string{path}, cli.WithResolvedPaths(true), cli.WithProfiles([]string{"*"}))
	if err != nil {
		return err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return err
	}
	text, err := project.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = fmt.Println(string(text))
	return err
}
