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
	"slices"
	"strings"
	"syscall"
	"time"
)

// The sections.
const (
	serversSection = "servers"
	clusterSection = "cluster"
)

// options is the command line, checked.
type options struct {
	section   string
	seconds   int      // of each load
	rounds    int      // starts of each server
	only      []string // server names; empty: all
	nodeCache string   // path of the binary
	out       string   // the markdown file to write; empty: none

	// Of the section servers.
	loads []string // load names, never empty

	// Of the section cluster.
	services int           // in all; one in eleven is headless, with 100 endpoints
	events   int           // services created one after another
	churn    time.Duration // how long objects change
	rate     int           // changes a second
}

func main() {
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
		printf(stderr, "bench: %v\n", err)
		return 2
	}
	if err := execute(ctx, opts, stdout); err != nil {
		printf(stderr, "bench: %v\n", err)
		return 1
	}
	return 0
}

// execute measures and writes what was asked for.
func execute(ctx context.Context, opts options, stdout io.Writer) error {
	// Read before the long part: a file that cannot be rewritten is an error at once.
	servers, cluster, err := readPage(opts.out)
	if err != nil {
		return err
	}
	measure := measureServers
	if opts.section == clusterSection {
		measure = measureCluster
	}
	rep, err := measure(ctx, opts, stdout)
	if err != nil {
		return err
	}
	text, err := rep.render()
	if err != nil {
		return err
	}
	printf(stdout, "\n%s", rep.summary())
	if opts.out == "" {
		return nil
	}
	if opts.section == clusterSection { // the other part stays
		cluster = text
	} else {
		servers = text
	}
	return replaceFile(opts.out, servers+clusterMark+cluster)
}

// printf writes to the terminal. An error there is no reason to stop measuring.
func printf(out io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(out, format, args...)
}

// parseOptions reads the section and its flags and checks their values.
func parseOptions(args []string, stderr io.Writer) (options, error) {
	if len(args) == 0 || args[0] != serversSection && args[0] != clusterSection {
		return options{}, fmt.Errorf("usage: bench %s|%s [flags]", serversSection, clusterSection)
	}
	opts := options{section: args[0]}
	set := flag.NewFlagSet("bench "+opts.section, flag.ContinueOnError)
	set.SetOutput(stderr)
	var only, loads string
	set.IntVar(&opts.rounds, "rounds", 3, "rounds; each server is started once a round")
	set.StringVar(&only, "only", "", "comma-separated servers to measure (default all)")
	set.StringVar(&opts.nodeCache, "node-cache", "bin/node-cache", "path of the node-cache binary")
	set.StringVar(&opts.out, "out", "", "markdown file whose part to write; other parts of it are kept")
	known := names(subjects(), func(s subject) string { return s.name })
	if opts.section == serversSection {
		// A longer list of names for misses would take more than half a gigabyte.
		set.IntVar(&opts.seconds, "secs", 5, "seconds of each load, at most 30")
		set.StringVar(&loads, "loads", strings.Join(loadNames(), ","), "comma-separated loads")
	} else {
		known = names(contenders(), func(c contender) string { return c.name })
		set.IntVar(&opts.seconds, "secs", 3, "seconds of each load, at most 30")
		set.IntVar(&opts.services, "services", 11_000, "services of the cluster; one in eleven is headless, with 100 endpoints")
		set.IntVar(&opts.events, "events", 200, "services created one after another under queries")
		set.DurationVar(&opts.churn, "churn", time.Minute, "how long objects change while the API server's traffic is counted; 0: no such part")
		set.IntVar(&opts.rate, "rate", 100, "changes a second")
	}
	if err := set.Parse(args[1:]); err != nil {
		return options{}, err
	}
	if set.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	var err error
	if opts.only, err = chosen("--only", only, known); err != nil {
		return options{}, err
	}
	if opts.section == serversSection {
		if opts.loads, err = chosen("--loads", loads, loadNames()); err != nil {
			return options{}, err
		}
		if len(opts.loads) == 0 {
			opts.loads = loadNames()
		}
	}
	return opts, opts.check()
}

// check holds the values against their bounds.
func (o *options) check() error {
	type bound struct {
		name               string
		value, least, most int
	}
	bounds := []bound{{"--secs", o.seconds, 1, 30}, {"--rounds", o.rounds, 1, 99}}
	if o.section == clusterSection {
		bounds = append(bounds,
			bound{"--services", o.services, 100, 50_000}, // enough names to tell the loads apart, and what a small machine holds
			bound{"--events", o.events, 0, 10_000}, bound{"--rate", o.rate, 1, 1000})
	}
	for _, b := range bounds {
		if b.value < b.least || b.value > b.most {
			return fmt.Errorf("%s %d: not within %d..%d", b.name, b.value, b.least, b.most)
		}
	}
	if o.churn < 0 || o.churn > time.Hour {
		return fmt.Errorf("--churn %s: not within 0s..1h", o.churn)
	}
	return nil
}

// chosen splits a comma-separated list and returns it in the order of known, without repeats.
func chosen(flagName, list string, known []string) ([]string, error) {
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%s: %q is not one of %s", flagName, name, strings.Join(known, ", "))
		}
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return slices.Index(known, a) - slices.Index(known, b) })
	return slices.Compact(names), nil
}

// loadNames are the names of the loads of the section servers.
func loadNames() []string { return names(loads(), func(l load) string { return l.name }) }

func names[T any](all []T, of func(T) string) []string {
	list := make([]string, len(all))
	for i, one := range all {
		list[i] = of(one)
	}
	return list
}
