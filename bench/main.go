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
)

// The longest a load may run, so that the list of names for misses stays below half a gigabyte.
const maxSeconds = 30

// options is the command line, checked.
type options struct {
	seconds   int      // of each load
	rounds    int      // each server is started once a round
	only      []string // server names; empty: all
	loads     []string // load names, never empty
	nodeCache string   // path of the binary; empty: not measured, with that reason
	source    string   // the folder of this module, which holds coredns/
	out       string   // the markdown file to write; empty: none
	json      string   // the file of every sample; empty: none
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
		say(stderr, "bench: %v\n", err)
		return 2
	}
	if err := execute(ctx, opts, stdout); err != nil {
		say(stderr, "bench: %v\n", err)
		return 1
	}
	return 0
}

// execute measures and writes what was asked for.
func execute(ctx context.Context, opts options, stdout io.Writer) error {
	// Read before the long part: a file that cannot be rewritten is known at once.
	old, err := readSections(opts.out)
	if err != nil {
		return err
	}
	rep, err := measure(ctx, opts, stdout)
	if err != nil {
		return err
	}
	text, err := render(rep)
	if err != nil {
		return err
	}
	say(stdout, "\n%s", summary(rep))
	if opts.json != "" {
		if err := writeJSON(opts.json, rep); err != nil {
			return err
		}
	}
	if opts.out == "" {
		return nil
	}
	return replaceFile(opts.out, keepSections(text, old))
}

// say writes to the terminal. What cannot be told there is no reason to stop measuring.
func say(out io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(out, format, args...)
}

// parseOptions reads the flags and checks their values.
func parseOptions(args []string, stderr io.Writer) (options, error) {
	var (
		opts        options
		only, loads string
	)
	set := flag.NewFlagSet("bench", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.IntVar(&opts.seconds, "secs", 5, "seconds of each load")
	set.IntVar(&opts.rounds, "rounds", 3, "rounds; each server is started once a round")
	set.StringVar(&only, "only", "", "comma-separated servers to measure (default all)")
	set.StringVar(&loads, "loads", strings.Join(loadNames(), ","), "comma-separated loads")
	set.StringVar(&opts.nodeCache, "node-cache", "", "path of the node-cache binary")
	set.StringVar(&opts.source, "src", "bench", "folder of the bench module, from which CoreDNS is built")
	set.StringVar(&opts.out, "out", "", "markdown file to write; sections of other commands in it are kept")
	set.StringVar(&opts.json, "json", "", "file for every sample, as JSON")
	if err := set.Parse(args); err != nil {
		return options{}, err
	}
	if set.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	if opts.seconds < 1 || opts.seconds > maxSeconds {
		return options{}, fmt.Errorf("--secs %d: not within 1..%d", opts.seconds, maxSeconds)
	}
	if opts.rounds < 1 || opts.rounds > 99 {
		return options{}, fmt.Errorf("--rounds %d: not within 1..99", opts.rounds)
	}
	var err error
	if opts.only, err = chosen("--only", only, subjectNames()); err != nil {
		return options{}, err
	}
	if opts.loads, err = chosen("--loads", loads, loadNames()); err != nil {
		return options{}, err
	}
	if len(opts.loads) == 0 {
		opts.loads = loadNames()
	}
	return opts, nil
}

// chosen splits a comma-separated list and returns it in the order of known, without repeats.
func chosen(flagName, list string, known []string) ([]string, error) {
	var want []string
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%s: %q is not one of %s", flagName, name, strings.Join(known, ", "))
		}
		want = append(want, name)
	}
	var names []string
	for _, name := range known {
		if slices.Contains(want, name) {
			names = append(names, name)
		}
	}
	return names, nil
}
