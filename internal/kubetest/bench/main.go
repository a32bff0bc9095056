// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// What may be asked for: enough names to tell the loads apart, and no more objects than a small machine holds.
const (
	leastServices = 100
	mostServices  = 50_000
)

// options is the command line, checked.
type options struct {
	services  int           // in all; one in eleven is headless, with 100 endpoints
	seconds   int           // of each load
	rounds    int           // starts of each server
	events    int           // services created one after another
	churn     time.Duration // how long objects change
	rate      int           // changes a second
	only      []string      // contenders; empty: all
	nodeCache string        // path of the binary
	floor     string        // path of the floor's source
	out       string        // the markdown file whose section to replace; empty: standard output
}

func main() {
	// A child dies with the thread that started it (Pdeathsig), so one thread starts them all and lives until the end.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process around it: it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts, err := parseOptions(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		printf(stderr, "bench-cluster: %v\n", err)
		return 2
	}
	if err := execute(ctx, opts, stdout, stderr); err != nil {
		printf(stderr, "bench-cluster: %v\n", err)
		return 1
	}
	return 0
}

// execute measures and writes what was asked for; progress goes to stderr.
func execute(ctx context.Context, opts options, stdout, stderr io.Writer) error {
	// Read before the long part: a file that cannot be rewritten is known at once.
	if opts.out != "" {
		if _, err := spliced(opts.out, ""); err != nil {
			return err
		}
	}
	rep, err := measure(ctx, opts, stderr)
	if err != nil {
		return err
	}
	text := section(rep)
	if opts.out == "" {
		printf(stdout, "%s", text)
		return nil
	}
	return replaceSection(opts.out, text)
}

// printf writes to the terminal. What cannot be told there is no reason to stop measuring.
func printf(out io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(out, format, args...)
}

// parseOptions reads the flags and checks their values.
func parseOptions(args []string, stderr io.Writer) (options, error) {
	var (
		opts options
		only string
	)
	set := flag.NewFlagSet("bench-cluster", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.IntVar(&opts.services, "services", 11_000, "services of the cluster; one in eleven is headless, with 100 endpoints")
	set.IntVar(&opts.seconds, "secs", 3, "seconds of each load")
	set.IntVar(&opts.rounds, "rounds", 3, "starts of each server")
	set.IntVar(&opts.events, "events", 200, "services created one after another under queries")
	set.DurationVar(&opts.churn, "churn", time.Minute, "how long objects change while the API server's traffic is counted; 0: no such part")
	set.IntVar(&opts.rate, "rate", 100, "changes a second")
	set.StringVar(&only, "only", "", "comma-separated contenders (default all)")
	set.StringVar(&opts.nodeCache, "node-cache", "bin/node-cache", "path of the node-cache binary")
	set.StringVar(&opts.floor, "floor", "bench/floor/floor.c", "path of the floor's source")
	set.StringVar(&opts.out, "out", "", "markdown file whose part on the cluster to replace (default standard output)")
	if err := set.Parse(args); err != nil {
		return options{}, err
	}
	for name := range strings.SplitSeq(only, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if known := contenderNames(); !slices.Contains(known, name) {
			return options{}, fmt.Errorf("-only: %q is not one of %s", name, strings.Join(known, ", "))
		}
		opts.only = append(opts.only, name)
	}
	return opts, opts.check(set.Args())
}

// check holds the values against their bounds.
func (o options) check(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q", rest[0])
	}
	for _, bound := range []struct {
		name               string
		value, least, most int
	}{
		{"-services", o.services, leastServices, mostServices},
		{"-secs", o.seconds, 1, 30},
		{"-rounds", o.rounds, 1, 99},
		{"-events", o.events, 0, 10_000},
		{"-rate", o.rate, 1, 1000},
	} {
		if bound.value < bound.least || bound.value > bound.most {
			return fmt.Errorf("%s %d: not within %d..%d", bound.name, bound.value, bound.least, bound.most)
		}
	}
	if o.churn < 0 || o.churn > time.Hour {
		return fmt.Errorf("-churn %s: not within 0s..1h", o.churn)
	}
	return nil
}
