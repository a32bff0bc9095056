// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
)

// A serversBench is one run of the section servers.
type serversBench struct {
	*harness

	opts         options
	report       serversReport
	upstreamPort int
}

// measureServers runs all rounds and returns what they found.
func measureServers(ctx context.Context, opts options, progress io.Writer) (report, error) {
	h, err := newHarness(opts.seconds, progress)
	if err != nil {
		return nil, err
	}
	defer h.close()
	b := &serversBench{harness: h, opts: opts}
	b.report = serversReport{Loads: opts.loads, results: results{Machine: describeMachine(), Seconds: opts.seconds, Rounds: opts.rounds}}
	if err := writeWorkload(h.dir, opts.seconds); err != nil {
		return nil, err
	}
	found := b.gather(ctx)
	if err := b.startUpstream(ctx); err != nil {
		return nil, err
	}
	defer h.upstream.Stop(grace)
	for round := range opts.rounds {
		for i := range found {
			b.trial(ctx, round, &found[i])
			if err := ctx.Err(); err != nil {
				return nil, fmt.Errorf("measuring: %w", err)
			}
		}
	}
	b.report.Machine.Generator = h.generator
	return &b.report, nil
}

// gather finds or builds each subject's program and opens its row in the report; one that is missing has the reason in it.
func (b *serversBench) gather(ctx context.Context) []subject {
	var found []subject
	for _, s := range subjects() {
		row := &result{Name: s.name, Samples: make(map[string][]sample)}
		var err error
		if len(b.opts.only) > 0 && !slices.Contains(b.opts.only, s.name) {
			row.Skipped = "not asked for"
		} else if s.path, err = b.find(ctx, &s); err != nil {
			row.Skipped = oneLine(err)
			printf(b.progress, "%-14s %v\n", s.name, err)
		} else {
			found = append(found, s)
			row.Version = b.version(ctx, s)
		}
		b.report.Results = append(b.report.Results, row)
	}
	return found
}

// version is the version of a subject's program. It notes the size of our own.
func (b *serversBench) version(ctx context.Context, s subject) string {
	if info, err := os.Stat(s.path); err == nil && s.name == oursName {
		b.report.Binary = info.Size() // make build strips it
	}
	if s.version == "" {
		return "C, cc -O2"
	}
	return programVersion(ctx, s.path, s.version)
}

// startUpstream starts NSD on the load's CPU and waits until it answers.
func (b *serversBench) startUpstream(ctx context.Context) error {
	path, err := proctest.LookProgram("nsd")
	if err != nil {
		return fmt.Errorf("looking for the upstream: %w (on Debian: apt-get install nsd)", err)
	}
	addr, err := proctest.ReservePort(ctx)
	if err != nil {
		return err
	}
	b.upstreamPort = int(addr.Port())
	b.report.Machine.Upstream = "NSD " + programVersion(ctx, path, "-v")
	conf := filepath.Join(b.dir, "nsd.conf")
	zone := "server:\n  minimal-responses: no\nzone:\n  name: bench.test\n  zonefile: zone\n" // answers with all sections
	if err := os.WriteFile(conf, []byte(proctest.NSDConfig(addr, b.dir, zone)), 0o600); err != nil {
		return fmt.Errorf("writing the upstream's configuration: %w", err)
	}
	if b.upstream, err = launch(ctx, otherCPU, b.dir, "nsd", []string{path, "-d", "-c", conf}); err != nil {
		return err
	}
	if err := b.awaitAnswer(ctx, b.upstream, b.upstreamPort, upstreamHost); err != nil {
		b.upstream.Stop(grace)
		return err
	}
	return nil
}

// trial starts one server in each of its ways, measures it once with every load, and stops it.
// What goes wrong with one server is a note in its row: the others are still measured.
func (b *serversBench) trial(ctx context.Context, round int, s *subject) {
	row := b.report.find(s.name)
	for _, start := range s.starts() {
		if start.tcp && !slices.ContainsFunc(b.loads(), start.serves) {
			continue
		}
		if err := b.serve(ctx, round, &start, row); err != nil {
			b.note(row, round, "", err)
		}
	}
}

// loads are those of this run.
func (b *serversBench) loads() []load {
	return slices.DeleteFunc(loads(), func(l load) bool { return !slices.Contains(b.opts.loads, l.name) })
}

// serve runs the server of one trial.
func (b *serversBench) serve(ctx context.Context, round int, s *subject, row *result) error {
	at, err := b.place(ctx, s.server, site{Upstream: b.upstreamPort, OverTCP: s.tcp})
	if err != nil {
		return err
	}
	defer discard(at.Dir)
	p, err := b.start(ctx, s.server, at)
	if err != nil {
		return err
	}
	defer p.Stop(grace)
	if err := b.settle(ctx, s, row, p, at.Port); err != nil {
		return err
	}
	for _, l := range b.loads() {
		if !s.serves(l) {
			continue
		}
		got, err := b.runLoad(ctx, p, l, at.Port)
		if err != nil && p.Ended() {
			return fmt.Errorf("load %s: %w", l.name, ended(p))
		}
		if err != nil {
			b.note(row, round, l.name, err)
			continue
		}
		b.sample(row, round, l.name, got)
	}
	return nil
}

// settle waits until the server answers, notes its memory at rest, and warms it.
func (b *serversBench) settle(ctx context.Context, s *subject, row *result, p *proctest.Process, port int) error {
	if err := b.awaitAnswer(ctx, p, port, upstreamHost); err != nil {
		return err
	}
	if !s.tcp {
		used, err := proctest.UsageOf(p.PID())
		if err != nil {
			return err
		}
		row.IdleMiB = append(row.IdleMiB, float64(used.RSS)/mib)
	}
	return b.warm(ctx, s, port)
}

// warm asks for every name of the hit lists twice: a name whose first query was lost is there after the second.
func (b *serversBench) warm(ctx context.Context, s *subject, port int) error {
	if s.name == floorName {
		return nil
	}
	for range 2 {
		if _, err := (dnsperfRun{list: filepath.Join(b.dir, "warm"), port: port}).run(ctx); err != nil {
			return fmt.Errorf("warming the cache: %w", err)
		}
	}
	return nil
}

// How long a server may take from its start to its first answer.
const answerTimeout = 30 * time.Second

// awaitAnswer asks for a host until the server answers with a record.
func (h *harness) awaitAnswer(ctx context.Context, p *proctest.Process, port int, host string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	client := &dns.Client{Timeout: 200 * time.Millisecond}
	query := new(dns.Msg).SetQuestion(host+".", dns.TypeA)
	return p.Await(ctx, 50*time.Millisecond, func(ctx context.Context) error {
		reply, _, err := client.ExchangeContext(ctx, query, fmt.Sprintf("%s:%d", loopback, port))
		if err == nil && len(reply.Answer) == 0 {
			err = errors.New("a reply without an answer")
		}
		return err
	})
}
