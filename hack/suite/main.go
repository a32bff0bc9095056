// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
)

func main() {
	good, err := run(os.Args[1:], os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintf(os.Stderr, "suite: %v\n", err)
	}
	if !good {
		os.Exit(1) //nolint:forbidigo // the exit of main
	}
}

// run reads events until stdin ends, writes the report to stdout and, when args names a file, the tally
// "passed failed skipped" into it. It reports whether at least one test ran and none failed.
func run(args []string, stdin io.Reader, stdout io.Writer) (good bool, err error) {
	if len(args) > 1 {
		return false, errors.New("usage: go test -json ... | suite [TALLY FILE]")
	}
	r := newResults()
	if err := r.read(stdin); err != nil {
		return false, err
	}
	if _, err := io.WriteString(stdout, r.report()); err != nil {
		return false, fmt.Errorf("writing the report: %w", err)
	}
	t := r.tally()
	if len(args) == 1 {
		line := fmt.Sprintf("%d %d %d\n", t.Passed, t.Failed, t.Skipped)
		if err := os.WriteFile(args[0], []byte(line), 0o644); err != nil {
			return false, fmt.Errorf("writing the tally: %w", err)
		}
	}
	return t.Failed == 0 && t.Passed > 0, nil
}
