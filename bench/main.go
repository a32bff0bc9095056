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
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The sections.
const (
	serversSection = "servers"
	clusterSection = "cluster"
	kernelSection  = "kernel"
	restSection    = "rest"
	fleetSection   = "fleet"
)

// options is the command line, checked, and the size of a run.
type options struct {
	section   string
	seconds   int      // of each load
	rounds    int      // starts of each server
	only      []string // server names; empty: all
	loads     []string // load names of the section servers, never empty
	out       string   // the markdown file to write; empty: none
	nodeCache string   // path of the binary

	// Of the sections cluster and fleet.
	services int           // in all; one in eleven is headless
	churn    time.Duration // how long objects change
	rate     int           // changes a second

	events    int   // services created one after another; of the section cluster
	endpoints int   // of the headless services; of the section fleet
	agents    []int // simulated ones, in each step; of the section fleet
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
	page, err := readPage(opts.out)
	if err != nil {
		return err
	}
	measure := map[string]func(context.Context, options, io.Writer) (report, error){
		serversSection: measureServers, clusterSection: measureCluster, kernelSection: measureKernel, restSection: measureRest,
		fleetSection: measureFleet,
	}[opts.section]
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
	page[opts.section] = text
	return os.WriteFile(opts.out, []byte(page.text()), 0o644)
}

// printf writes to the terminal. An error there is no reason to stop measuring.
func printf(out io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(out, format, args...)
}

// parseOptions reads the section and its flags and checks their values.
func parseOptions(args []string, stderr io.Writer) (options, error) {
	sections := []string{serversSection, clusterSection, kernelSection, restSection, fleetSection}
	if len(args) == 0 || !slices.Contains(sections, args[0]) {
		return options{}, fmt.Errorf("usage: bench %s [flags]", strings.Join(sections, "|"))
	}
	opts := options{section: args[0], nodeCache: "bin/node-cache", services: 11_000, events: 200, churn: time.Minute, rate: 100, endpoints: 100_000}
	set := flag.NewFlagSet("bench "+opts.section, flag.ContinueOnError)
	set.SetOutput(stderr)
	known, seconds, longest, loads, agents := names(subjects(), func(s subject) string { return s.name }), 5, 30, "", ""
	switch opts.section {
	case serversSection:
		set.StringVar(&loads, "loads", "", "comma-separated loads (default all)")
	case clusterSection:
		known, seconds = names(contenders(), func(c contender) string { return c.name }), 3
	case kernelSection:
		known, seconds = nil, 3
	case restSection:
		known, seconds, longest = nil, 60, 3600
	case fleetSection:
		known, seconds, longest = []string{localMode, centralMode, pushMode}, 60, 3600
		set.StringVar(&agents, "agents", "500,1000,2000,3333", "comma-separated numbers of simulated agents")
		set.IntVar(&opts.services, "services", opts.services, "Services, of which one in eleven is headless")
		set.IntVar(&opts.endpoints, "endpoints", opts.endpoints, "endpoints of the headless ones")
		set.DurationVar(&opts.churn, "churn", opts.churn, "how long objects change")
	}
	set.IntVar(&opts.seconds, "secs", seconds, fmt.Sprintf("seconds of each load, at most %d", longest)) // more names for misses take over half a gigabyte
	set.IntVar(&opts.rounds, "rounds", 3, "rounds; each server is started once a round")
	only := new(string)
	if known != nil {
		set.StringVar(only, "only", "", "comma-separated servers, or modes, to measure (default all)")
	}
	set.StringVar(&opts.out, "out", "", "markdown file whose part to write; other parts of it are kept")
	if err := set.Parse(args[1:]); err != nil {
		return options{}, err
	}
	var errs [3]error
	opts.only, errs[0] = chosen("--only", *only, known)
	opts.loads, errs[1] = chosen("--loads", loads, loadNames())
	opts.agents, errs[2] = numbers("--agents", agents)
	if opts.section == fleetSection && len(opts.only) == 0 {
		opts.only = known
	}
	if len(opts.loads) == 0 {
		opts.loads = loadNames()
	}
	switch {
	case set.NArg() > 0:
		return options{}, fmt.Errorf("unexpected argument %q", set.Arg(0))
	case opts.seconds < 1 || opts.seconds > longest:
		return options{}, fmt.Errorf("--secs %d: not within 1..%d", opts.seconds, longest)
	case opts.services < 2*headlessShare || opts.endpoints < opts.services/headlessShare:
		return options{}, fmt.Errorf("--services %d, --endpoints %d: at least %d services, and an endpoint for each headless one", opts.services, opts.endpoints, 2*headlessShare)
	case opts.churn < time.Second:
		return options{}, fmt.Errorf("--churn %s: not a second", opts.churn)
	case opts.rounds < 1:
		return options{}, fmt.Errorf("--rounds %d: not above 0", opts.rounds)
	}
	return opts, errors.Join(errs[:]...)
}

// numbers splits a comma-separated list of numbers above 0.
func numbers(flagName, list string) (found []int, err error) {
	for text := range strings.SplitSeq(list, ",") {
		if list == "" {
			break
		}
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 1 || n > 1<<16 {
			return nil, fmt.Errorf("%s: %q is not a number within 1..65536", flagName, text)
		}
		found = append(found, n)
	}
	return found, nil
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
