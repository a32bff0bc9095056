// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// How long a server may take from its start to its first answer.
const startTimeout = 30 * time.Second

// trial starts one server in each of its ways, measures it once with every load, and stops it.
// What goes wrong with one server is a note in its row: the others are still measured.
func (b *bench) trial(ctx context.Context, round int, c contender) {
	row := b.row(c.name)
	for _, start := range c.starts() {
		if start.way != plain && !slices.ContainsFunc(b.loads(), start.serves) {
			continue
		}
		if err := b.serve(ctx, round, start, row); err != nil {
			b.note(row, note{Round: round + 1, Why: oneLine(err)})
		}
	}
}

// loads are those of this run.
func (b *bench) loads() []load {
	return slices.DeleteFunc(loads(), func(l load) bool { return !slices.Contains(b.opts.loads, l.name) })
}

// note keeps and shows what went wrong.
func (b *bench) note(row *result, n note) {
	row.Notes = append(row.Notes, n)
	say(b.progress, "%-14s %s\n", row.Name, n)
}

// row finds a subject's row of the report.
func (b *bench) row(name string) *result {
	i := slices.IndexFunc(b.report.Results, func(r result) bool { return r.Name == name })
	return &b.report.Results[i]
}

// serve runs the server of one trial.
func (b *bench) serve(ctx context.Context, round int, c contender, row *result) error {
	at, err := b.site(ctx, c)
	if err != nil {
		return err
	}
	defer discard(at.dir)
	p, err := start(ctx, serverCPU, at.dir, append([]string{c.path}, c.args(at)...))
	if err != nil {
		return err
	}
	defer p.stop()
	if err := b.settle(ctx, c, row, p, at.port); err != nil {
		return err
	}
	for _, l := range b.loads() {
		if !c.serves(l) {
			continue
		}
		s, err := b.shoot(ctx, p, l, at.port)
		if err != nil && p.exited() {
			return fmt.Errorf("ended during load %s: %s", l.name, p.lastWords())
		}
		if err != nil {
			b.note(row, note{Round: round + 1, Load: l.name, Why: oneLine(err)})
			continue
		}
		row.Samples[l.name] = append(row.Samples[l.name], s)
		say(b.progress, "round %d %-14s %-8s %8.0f q/s  %6.2f us CPU/query  core %3.0f %%  latency %6.0f us  lost %d  wrong %d  %.0f MiB\n",
			round+1, c.name, l.name, s.QPS, s.CPU, 100*s.Busy, s.Latency, s.Lost, s.Wrong, s.MiB)
	}
	return nil
}

// settle waits until the server answers, notes its memory at rest, and warms it.
func (b *bench) settle(ctx context.Context, c contender, row *result, p *process, port int) error {
	first := upstreamHost
	if c.way == inZone {
		first = zoneHost
	}
	if err := awaitAnswer(ctx, p, port, first); err != nil {
		return err
	}
	if c.way == plain { // memory at rest is that without a cluster
		idle, err := residentMiB(p.pid())
		if err != nil {
			return err
		}
		row.IdleMiB = append(row.IdleMiB, idle)
	}
	return b.warm(ctx, c, port)
}

// site makes the place for one start. A folder of its own each time: a cache kept on disk would turn a later
// round's misses into hits.
func (b *bench) site(ctx context.Context, c contender) (site, error) {
	b.starts++
	at := site{dir: filepath.Join(b.dir, fmt.Sprintf("%s-%d", c.name, b.starts)), upstream: b.upstreamPort, cluster: filepath.Join(b.dir, manifestsDir)}
	at.conf = filepath.Join(at.dir, "conf")
	var err error
	if at.port, err = b.ports.free(ctx); err != nil {
		return site{}, err
	}
	if at.metrics, err = b.ports.free(ctx); err != nil {
		return site{}, err
	}
	if err := os.Mkdir(at.dir, 0o700); err != nil {
		return site{}, fmt.Errorf("creating a folder: %w", err)
	}
	if c.config == nil {
		return at, nil
	}
	if err := os.WriteFile(at.conf, []byte(c.config(at)), 0o600); err != nil {
		return site{}, fmt.Errorf("writing a configuration: %w", err)
	}
	return at, nil
}

// warm asks for every name of the hit lists, or for the names of the zone, twice: a name whose first query was lost
// is there after the second.
func (b *bench) warm(ctx context.Context, c contender, port int) error {
	if c.name == floorName {
		return nil
	}
	list := "warm"
	if c.way == inZone {
		list = "cluster"
	}
	for range 2 {
		p, err := volley{list: filepath.Join(b.dir, list), port: port}.fire(ctx)
		if err != nil {
			return fmt.Errorf("warming the cache: %w", err)
		}
		b.report.Machine.Generator = "dnsperf " + p.version
	}
	return nil
}

// shoot runs one load and takes its sample.
func (b *bench) shoot(ctx context.Context, p *process, l load, port int) (sample, error) {
	before, err := b.clocks(p)
	if err != nil {
		return sample{}, err
	}
	got, err := volley{list: filepath.Join(b.dir, l.list), port: port, seconds: b.opts.seconds, tcp: l.tcp}.fire(ctx)
	if err != nil {
		return sample{}, err
	}
	after, err := b.clocks(p)
	if err != nil {
		return sample{}, err
	}
	mib, err := residentMiB(p.pid())
	if err != nil {
		return sample{}, err
	}
	if l.once && got.completed+got.lost >= int64(missLines(b.opts.seconds)) {
		return sample{}, errors.New("the list of new names was too short for this server")
	}
	s, err := newSample(got, after.server-before.server, mib, l.rcode)
	s.Others = after.othersSince(before, got.cpu)
	return s, err
}

// clocks reads the CPU time of the server, the upstream and the machine.
func (b *bench) clocks(server *process) (clocks, error) {
	var (
		c   clocks
		err error
	)
	if c.server, err = cpuTime(server.pid()); err != nil {
		return clocks{}, err
	}
	if c.upstream, err = cpuTime(b.upstream.pid()); err != nil {
		return clocks{}, err
	}
	c.busy, c.all, err = machineTime()
	return c, err
}

// awaitAnswer asks for a host until the server answers with a record.
func awaitAnswer(ctx context.Context, p *process, port int, host string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	client := &dns.Client{Timeout: 200 * time.Millisecond}
	query := new(dns.Msg).SetQuestion(host+".", dns.TypeA)
	for {
		reply, _, err := client.ExchangeContext(ctx, query, fmt.Sprintf("%s:%d", loopback, port))
		if err == nil && len(reply.Answer) > 0 {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("did not start: %s", p.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("gave no answer within %s: %s", startTimeout, p.lastWords())
		case <-pause.C:
		}
	}
}
