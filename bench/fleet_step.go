// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	startWithin = 10 * time.Second // the simulated agents
	phaseLimit  = 2 * time.Minute
)

// A fleetStep is a resolver with a number of simulated agents. CPU is a share of a core.
type fleetStep struct {
	agents, subscriptions   int
	emptyMiB, mib           float64 // of the resolver, without agents and with them at rest
	startCPU, restCPU       float64
	started, each           events  // from the first agent's start, and from that of each, until it had subscribed and had every right answer
	requests                int     // of both resolvers to the API server meanwhile
	restBytes, changesBytes float64 // a second from the resolver

	changes, expected int    // changes at an even rate, and the right answers that all agents together should get
	fresh, watch      events // the right answers: the time from the API server's reply, and from the event of a watch without work
	changesCPU        float64

	everyone       []time.Duration // of each change of the name that all hold: until the last of the agents had it
	ended          int64           // sessions that ended until here
	killed, silent events          // from the loss of the resolver until an agent has subscribed again, and has every right answer
}

// step starts the resolvers again and runs simulated agents, all of them at the first resolver.
func (b *fleetBench) step(ctx context.Context, agents int) error {
	for _, p := range b.resolvers {
		p.process.Kill()
		if err := b.start(ctx, p); err != nil {
			return err
		}
	}
	s := &fleetStep{agents: agents}
	f := &fleet{names: map[string]*fleetName{}, dial: b.dial}
	for _, n := range b.ranked {
		clear(n.holders)
		n.expect(n.want, nil)
		f.names[string(n.wire)] = n.fleetName
	}
	running, cancel := context.WithCancel(ctx)
	defer f.tasks.Wait()
	defer cancel()
	for _, phase := range []struct {
		name string
		run  func() error
	}{
		{"start", func() error { return b.startFleet(ctx, running, f, s) }},
		{"rest", func() error { return b.restFleet(ctx, f, s) }},
		{"changes", func() error { return b.changeFleet(ctx, f, s) }},
		{"one name", func() error { return b.changeEveryone(ctx, s) }},
		{"loss", func() error { return b.loseBoth(ctx, f, s) }},
	} {
		printf(b.progress, "%d agents: %s\n", agents, phase.name)
		if err := errors.Join(retry.Sleep(ctx, settleTime), phase.run()); err != nil {
			return fmt.Errorf("%s: %w", phase.name, err)
		}
	}
	printf(b.progress, "%s", b.report.stepTable())
	return nil
}

// dial connects an agent, from an address of its own.
func (b *fleetBench) dial(ctx context.Context, agent, server int) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(agent>>8), byte(agent))}, Timeout: respond}
	return d.DialContext(ctx, "tcp4", net.JoinHostPort(loopback, strconv.Itoa(b.resolvers[server].at.Port)))
}

// startFleet starts the agents, which run until running ends.
func (b *fleetBench) startFleet(ctx, running context.Context, f *fleet, s *fleetStep) (err error) {
	names, random := make([][]*fleetName, s.agents), newSeeded(2)
	for i := range names {
		for _, n := range b.someNames(random, namesPerAgent) {
			names[i] = append(names[i], n.fleetName)
		}
		s.subscriptions += len(names[i])
	}
	if _, s.emptyMiB, err = b.resolvers[0].during(func() error { return nil }); err != nil {
		return err
	}
	begin := time.Now()
	s.startCPU, _, err = b.resolvers[0].during(func() error {
		f.begin(s.agents)
		for i := range names {
			f.start(running, i, names[i], rand.N(startWithin))
		}
		s.started, err = f.await(ctx, phaseLimit)
		return err
	})
	if err != nil {
		return err
	}
	s.each = f.each
	end := time.Now()
	requests, err := b.cluster.Audit()
	for _, r := range requests {
		if r.User == resolverUser && r.Time.After(begin) && r.Time.Before(end) {
			s.requests++
		}
	}
	return err
}

// restFleet measures the resolver while nothing changes.
func (b *fleetBench) restFleet(ctx context.Context, f *fleet, s *fleetStep) (err error) {
	bytes := f.bytes.Load()
	s.restCPU, s.mib, err = b.resolvers[0].during(func() error { return retry.Sleep(ctx, time.Duration(b.opts.seconds)*time.Second) })
	s.restBytes = float64(f.bytes.Load()-bytes) / float64(b.opts.seconds)
	b.report.steps = append(b.report.steps, s) // one that fails later has figures up to there
	return err
}

// changeFleet changes Services at random. The last answers have a few seconds more.
func (b *fleetBench) changeFleet(ctx context.Context, f *fleet, s *fleetStep) (err error) {
	bytes := f.bytes.Load()
	s.changesCPU, _, err = b.resolvers[0].during(func() error { return b.churn(ctx, s) })
	s.changesBytes = float64(f.bytes.Load()-bytes) / b.opts.churn.Seconds()
	return errors.Join(err, retry.Sleep(ctx, settled))
}

// changeEveryone changes the name that all agents hold.
func (b *fleetBench) changeEveryone(ctx context.Context, s *fleetStep) error {
	for range nameChanges {
		var got events
		all := make(chan struct{})
		add := func(r rightAnswer) { // called with the name locked
			if got.latencies = append(got.latencies, r.reply); len(got.latencies) == s.agents {
				close(all)
			}
		}
		if err := b.change(ctx, b.everyone, b.newAddress(), add); err != nil {
			return err
		}
		select {
		case <-all:
		case <-time.After(eventTimeout):
			return fmt.Errorf("%d agents have the old answer after %s", b.everyone.missing(), eventTimeout)
		}
		s.everyone = append(s.everyone, got.quantile(1))
	}
	return nil
}

// loseBoth kills the resolver that all agents have, and then stops the other one, to which they went.
func (b *fleetBench) loseBoth(ctx context.Context, f *fleet, s *fleetStep) (err error) {
	s.ended = f.sessions.Load() - int64(s.agents)
	if s.killed, err = b.lose(ctx, f, 0, syscall.SIGKILL, func(m *fleetMode) *freshness { return &m.killed }); err != nil {
		return fmt.Errorf("a resolver is killed: %w", err)
	}
	if err := errors.Join(b.start(ctx, b.resolvers[0]), retry.Sleep(ctx, settleTime)); err != nil {
		return err
	}
	if s.silent, err = b.lose(ctx, f, 1, syscall.SIGSTOP, func(m *fleetMode) *freshness { return &m.silent }); err != nil {
		return fmt.Errorf("a resolver is silent: %w", err)
	}
	return nil
}

// lose sends a resolver a signal, and waits until all agents have subscribed at the other one.
func (b *fleetBench) lose(ctx context.Context, f *fleet, which int, signal syscall.Signal, of func(*fleetMode) *freshness) (events, error) {
	err := b.observe(ctx, of, func() {
		f.begin(len(b.everyone.holders))
		b.resolvers[which].process.Signal(signal)
	})
	if err != nil {
		return events{}, err
	}
	return f.await(ctx, phaseLimit)
}
