// Reads dashboards as strictly as Grafana's own types allow: with the decoder of its Foundation SDK that refuses
// unknown fields and wrong types, in the options of each kind of panel and query too, and then with its checks of values.
//
// Each problem is a line on stdout: the file, the place in it, what is wrong. Exit code 1 when there is one. It needs no
// Grafana and starts nothing.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: grafana DASHBOARD...")
		os.Exit(2)
	}
	plugins.RegisterDefaultPlugins()
	good := true
	for _, path := range os.Args[1:] {
		for _, problem := range problems(path) {
			fmt.Printf("%s: %v\n", path, problem)
			good = false
		}
	}
	if !good {
		os.Exit(1)
	}
}

func problems(path string) []error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return []error{err}
	}
	var board dashboard.Dashboard
	if found := each(board.UnmarshalJSONStrict(raw)); len(found) > 0 {
		return found
	}
	return each(board.Validate())
}

// The SDK returns an empty list of errors where it found none, which is no nil error.
func each(err error) []error {
	var built cog.BuildErrors
	if errors.As(err, &built) {
		found := make([]error, len(built))
		for index, one := range built {
			found[index] = one
		}
		return found
	}
	if err != nil {
		return []error{err}
	}
	return nil
}
