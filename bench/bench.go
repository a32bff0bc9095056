// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

//go:embed floor/floor.c
var floorSource string

// The first port tried. Below the range from which kernels pick ports for clients.
const firstPort = 5300

// A bench is one run: what every round of it shares.
type bench struct {
	opts     options
	dir      string // removed at the end
	progress io.Writer
	ports    *portFinder
	starts   int // servers started so far, for the names of their folders
	report   report

	upstream     *process
	upstreamPort int
}

// A way is how a server is started for some of the loads.
type way uint8

// The ways.
const (
	plain   way = iota // as a cache whose upstream is asked over UDP
	inZone             // as a server of a cluster's zone too
	overTCP            // as a cache whose upstream is asked over TCP
)

// A contender is a subject with its program found.
type contender struct {
	subject

	path string
	way  way // of which its config is
}

// starts are the ways in which a round starts the server, as far as it knows them.
func (c contender) starts() []contender {
	starts := []contender{c}
	for way, config := range map[way]func(site) string{inZone: c.zone, overTCP: c.overTCP} {
		if config != nil {
			other := c
			other.config, other.way = config, way
			starts = append(starts, other)
		}
	}
	slices.SortFunc(starts, func(a, b contender) int { return int(a.way) - int(b.way) })
	return starts
}

// serves reports whether the load is for this start of the server.
func (c contender) serves(l load) bool {
	return l.way == c.way && (c.load == "" || c.load == l.name)
}

// knows reports whether the load is for any start of the server.
func (s subject) knows(l load) bool {
	return slices.ContainsFunc(contender{subject: s}.starts(), func(c contender) bool { return c.serves(l) })
}

// measure runs all rounds and returns what they found.
func measure(ctx context.Context, opts options, progress io.Writer) (report, error) {
	if err := needTwoCPUs(); err != nil {
		return report{}, err
	}
	for _, program := range []string{"dnsperf", "nsd"} {
		if _, err := lookProgram(program); err != nil {
			return report{}, fmt.Errorf("looking for %s: %w (on Debian: apt-get install %s)", program, err, program)
		}
	}
	dir, err := os.MkdirTemp("", "dns-bench-")
	if err != nil {
		return report{}, fmt.Errorf("creating a folder: %w", err)
	}
	defer discard(dir)
	b := &bench{opts: opts, dir: dir, progress: progress, ports: &portFinder{next: firstPort}}
	b.report = report{Seconds: opts.seconds, Rounds: opts.rounds, Loads: opts.loads, Machine: describeMachine()}
	if err := newWorkload().write(dir, opts.seconds); err != nil {
		return report{}, err
	}
	contenders := b.gather(ctx)
	if err := b.startUpstream(ctx); err != nil {
		return report{}, err
	}
	defer b.upstream.stop()
	for round := range opts.rounds {
		for _, c := range contenders {
			b.trial(ctx, round, c)
			if err := ctx.Err(); err != nil {
				return report{}, fmt.Errorf("measuring: %w", err)
			}
		}
	}
	return b.report, nil
}

// discard removes a folder of this run. One that stays behind harms no figure.
func discard(dir string) { _ = os.RemoveAll(dir) }

// needTwoCPUs checks that this program may use both CPUs that it pins to.
func needTwoCPUs() error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return fmt.Errorf("reading the affinity: %w", err)
	}
	if !set.IsSet(serverCPU) || !set.IsSet(loadCPU) {
		return fmt.Errorf("pinning: CPUs %d and %d are needed, one for the server and one for the load", serverCPU, loadCPU)
	}
	return nil
}

// gather finds or builds each subject's program and opens its row in the report; one that is missing has the reason in it.
func (b *bench) gather(ctx context.Context) []contender {
	build := builder{dir: b.dir, source: b.opts.source, nodeCache: b.opts.nodeCache}
	var found []contender
	for _, s := range subjects() {
		row := result{Name: s.name, Samples: make(map[string][]sample)}
		if len(b.opts.only) > 0 && !slices.Contains(b.opts.only, s.name) {
			row.Skipped = "not asked for"
			b.report.Results = append(b.report.Results, row)
			continue
		}
		path, err := s.find(build, ctx)
		if err != nil {
			row.Skipped = oneLine(err)
			say(b.progress, "%-14s %v\n", s.name, err)
		} else {
			found = append(found, contender{subject: s, path: path})
			row.Version = "C, cc -O2"
			if len(s.version) > 0 {
				row.Version = programVersion(ctx, path, s.version)
			}
		}
		if err == nil && s.name == oursName {
			b.report.Binary = measureBinary(ctx, path, b.dir)
		}
		b.report.Results = append(b.report.Results, row)
	}
	return found
}

// measureBinary strips a copy of the binary and returns its size.
func measureBinary(ctx context.Context, path, dir string) binary {
	stripped := filepath.Join(dir, "stripped")
	if err := output(exec.CommandContext(ctx, "strip", "-o", stripped, path)); err != nil {
		return binary{Skipped: oneLine(err)}
	}
	info, err := os.Stat(stripped)
	if err != nil {
		return binary{Skipped: oneLine(err)}
	}
	return binary{Bytes: info.Size()}
}

// startUpstream starts NSD on the load's CPU and waits until it answers.
func (b *bench) startUpstream(ctx context.Context) error {
	path, err := lookProgram("nsd")
	if err != nil {
		return fmt.Errorf("looking for nsd: %w", err)
	}
	if b.upstreamPort, err = b.ports.free(ctx); err != nil {
		return err
	}
	b.report.Machine.Upstream = "NSD " + programVersion(ctx, path, []string{"-v"})
	conf := filepath.Join(b.dir, "nsd.conf")
	if err := os.WriteFile(conf, []byte(upstreamConfig(b.dir, b.upstreamPort)), 0o600); err != nil {
		return fmt.Errorf("writing the upstream's configuration: %w", err)
	}
	p, err := start(ctx, loadCPU, b.dir, []string{path, "-d", "-c", conf})
	if err != nil {
		return err
	}
	if err := awaitAnswer(ctx, p, b.upstreamPort, upstreamHost); err != nil {
		p.stop()
		return fmt.Errorf("waiting for the upstream: %w", err)
	}
	b.upstream = p
	return nil
}
