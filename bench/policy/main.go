// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

// The most a flag may ask for: moments, with the longest TTL added, stay below never.
const maxCount = 100_000_000

// options is the command line, checked.
type options struct {
	queries int    // in each window of a trace
	names   int    // of the Zipf trace
	out     string // the markdown file whose section to replace; empty: standard output
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process around it: it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	opts, err := parseOptions(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "policy: %v\n", err)
		return 2
	}
	text := section(opts)
	if opts.out == "" {
		_, err = io.WriteString(stdout, text)
	} else {
		err = replaceSection(opts.out, text)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "policy: %v\n", err)
		return 1
	}
	return 0
}

func parseOptions(args []string, stderr io.Writer) (options, error) {
	var opts options
	set := flag.NewFlagSet("policy", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.IntVar(&opts.queries, "queries", 5_000_000, "questions in each of the three windows of a trace")
	set.IntVar(&opts.names, "names", 1_000_000, "names of the Zipf trace")
	set.StringVar(&opts.out, "out", "", "markdown file whose policy section to replace (default standard output)")
	if err := set.Parse(args); err != nil {
		return options{}, err
	}
	if set.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	if opts.queries < 1 || opts.queries > maxCount {
		return options{}, fmt.Errorf("-queries %d: not within 1..%d", opts.queries, maxCount)
	}
	if opts.names < 1 || opts.names > maxCount {
		return options{}, fmt.Errorf("-names %d: not within 1..%d", opts.names, maxCount)
	}
	return opts, nil
}
