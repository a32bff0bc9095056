// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// options are the command line.
type options struct {
	nodeCache string // the program
	manifests string // a folder with the objects of a cluster
	dir       string // of the running play, for the inner process
}

// A hintError is an error that its reader can do something about.
type hintError struct {
	error
	hint string
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) //nolint:forbidigo // the exit of main
}

// run is the whole program but the exit.
func run(args []string, stdout, stderr io.Writer) int {
	code, err := dispatch(args, stdout, stderr)
	if err == nil {
		return code
	}
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "play: %v\n", err)
	if hint := (*hintError)(nil); errors.As(err, &hint) {
		_, _ = fmt.Fprintf(stderr, "hint: %s\n", hint.hint)
	}
	return 1
}

// dispatch runs the program as what its first argument says: the play starts itself with one, and so does its command
// who-answers. A person gives none.
func dispatch(args []string, stdout, stderr io.Writer) (code int, err error) {
	command := ""
	if len(args) > 0 && (args[0] == "inside" || args[0] == "who-answers") {
		command, args = args[0], args[1:]
	}
	if command == "who-answers" {
		return whoAnswers(context.Background(), args, stdout, stderr)
	}
	var o options
	flags := flag.NewFlagSet("play", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.nodeCache, "node-cache", "bin/node-cache", "the `program` to play with")
	flags.StringVar(&o.manifests, "manifests", "examples/cluster", "the `folder` of the cluster's objects")
	flags.StringVar(&o.dir, "dir", "", "the folder of a running play, which it passes to itself")
	if err := flags.Parse(args); err != nil {
		return 0, err
	}
	if o.nodeCache, err = filepath.Abs(o.nodeCache); err != nil {
		return 0, err
	}
	if command == "inside" {
		return runInner(context.Background(), o, stdout)
	}
	return runOuter(o)
}
