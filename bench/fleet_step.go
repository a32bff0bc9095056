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

// A fleetStep is a resolver with a number of simulated agents.
type fleetStep struct {
	agents, subscriptions int
	emptyMiB, mib         float64 // of the resolver, without agents and with them at rest
	startCPU, restCPU     float64 // of it, as shares of a core
	killCPU, silentCPU    float64 // of the other resolver, from the loss to the last agent
	started, each         events  // from the first agent's start, and from that of each, until it had subscribed and had every right answer
	requests              int     // of both resolvers to the API server meanwhile
	messages, bytes       float64 // a second from the resolver at rest
	churn                 fleetChurn
	everyone              []time.Duration // of each change of the name that all hold: until the last of the agents had it
	ended                 int64           // sessions that ended before
	killed, silent        events          // from the loss of the resolver
}

// A fleetChurn is what came of changes at an even rate.
type fleetChurn struct {
	changes  int
	expected int    // answers at all agents that hold the names
	fresh    events // those that came
	cpu      float64
	pushes   int64
	bytes    float64 // a second
}

// step starts the resolvers again and runs simulated agents, all of them at the first resolver.
func (b *fleetBench) step(ctx context.Context, agents int) error {
	for _, p := range b.resolvers {
		p.process.Kill()
		if err := b.start(ctx, p); err != nil {
			return err
		}
	}
	b.report.steps = append(b.report.steps, &fleetStep{agents: agents})
	s := b.report.steps[len(b.report.steps)-1]
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
		run  func(context.Context, *fleet, *fleetStep) error
	}{
		{"start", func(ctx context.Context, f *fleet, s *fleetStep) error { return b.startFleet(ctx, running, f, s) }},
		{"rest", b.restFleet},
		{"changes", b.churnFleet},
		{"one name", b.everyoneFleet},
		{"loss", b.loss},
	} {
		if err := phase.run(ctx, f, s); err != nil {
			return fmt.Errorf("%s: %w", phase.name, err)
		}
		printf(b.progress, "%d agents, %s\n%s", agents, phase.name, b.report.stepTable())
	}
	return nil
}

// dial connects an agent, from an address of its own.
func (b *fleetBench) dial(ctx context.Context, agent, server int) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(agent>>8), byte(agent))}, Timeout: respond}
	return d.DialContext(ctx, "tcp4", net.JoinHostPort(loopback, strconv.Itoa(b.resolvers[server].at.Port)))
}

// startFleet starts the agents, which run until running ends.
func (b *fleetBench) startFleet(ctx, running context.Context, f *fleet, s *fleetStep) error {
	if err := retry.Sleep(ctx, settleTime); err != nil {
		return err
	}
	names, random := make([][]*fleetName, s.agents), newSeeded(2)
	for i := range names {
		for _, n := range b.someNames(random, namesPerAgent) {
			names[i] = append(names[i], n.fleetName)
		}
		s.subscriptions += len(names[i])
	}
	begin, err := b.resolvers[0].begin()
	if err != nil {
		return err
	}
	if _, s.emptyMiB, err = b.resolvers[0].used(begin); err != nil {
		return err
	}
	f.begin(s.agents)
	for i := range names {
		f.start(running, i, names[i], rand.N(startWithin))
	}
	if s.started, err = f.await(ctx, phaseLimit); err != nil {
		return err
	}
	s.each = f.each
	end := time.Now()
	if s.startCPU, _, err = b.resolvers[0].used(begin); err != nil {
		return err
	}
	requests, err := b.cluster.Audit()
	for _, r := range requests {
		if r.User == resolverUser && r.Time.After(begin) && r.Time.Before(end) {
			s.requests++
		}
	}
	return err
}

// restFleet measures the resolver while nothing changes.
func (b *fleetBench) restFleet(ctx context.Context, f *fleet, s *fleetStep) error {
	if err := retry.Sleep(ctx, settleTime); err != nil {
		return err
	}
	begin, err := b.resolvers[0].begin()
	messages, bytes := f.messages.Load(), f.bytes.Load()
	if err := errors.Join(err, retry.Sleep(ctx, time.Duration(b.opts.seconds)*time.Second)); err != nil {
		return err
	}
	took := time.Since(begin).Seconds()
	s.messages, s.bytes = float64(f.messages.Load()-messages)/took, float64(f.bytes.Load()-bytes)/took
	s.restCPU, s.mib, err = b.resolvers[0].used(begin)
	return err
}

// churnFleet changes Services at random.
func (b *fleetBench) churnFleet(ctx context.Context, f *fleet, s *fleetStep) error {
	begin, err := b.resolvers[0].begin()
	if err != nil {
		return err
	}
	pushes, bytes := f.pushes.Load(), f.bytes.Load()
	err = b.churn(ctx, &s.churn)
	// The changes take less time than that: agents have a few seconds more for the last of them.
	share := time.Since(begin).Seconds() / b.opts.churn.Seconds()
	cpu, _, err2 := b.resolvers[0].used(begin)
	s.churn.cpu, s.churn.pushes = cpu*share, f.pushes.Load()-pushes
	s.churn.bytes = float64(f.bytes.Load()-bytes) / b.opts.churn.Seconds()
	return errors.Join(err, err2)
}

// everyoneFleet changes the name that all agents hold.
func (b *fleetBench) everyoneFleet(ctx context.Context, _ *fleet, s *fleetStep) error {
	for range nameChanges {
		var got events
		all := make(chan struct{})
		_, at, err := b.changeEveryone(ctx, func(took time.Duration) { // called with the name locked
			if got.latencies = append(got.latencies, took); len(got.latencies) == s.agents {
				close(all)
			}
		})
		if err != nil {
			return err
		}
		limit, cancel := context.WithTimeout(ctx, eventTimeout)
		select {
		case <-all:
		case <-limit.Done():
			err = fmt.Errorf("%d agents have the old answer after %s", b.everyone.missing(), time.Since(at))
		}
		cancel()
		if err != nil {
			return err
		}
		s.everyone = append(s.everyone, got.quantile(1))
	}
	return nil
}

// loss kills the resolver that all agents have, and then stops the other one, to which they went.
func (b *fleetBench) loss(ctx context.Context, f *fleet, s *fleetStep) error {
	s.ended = f.sessions.Load() - int64(s.agents)
	var err error
	killed := func(m *fleetMode) *freshness { return &m.killed }
	if s.killed, s.killCPU, err = b.lose(ctx, f, 0, syscall.SIGKILL, killed); err != nil {
		return fmt.Errorf("killed: %w", err)
	}
	<-b.resolvers[0].process.Done()
	if err := b.start(ctx, b.resolvers[0]); err != nil {
		return err
	}
	if err := retry.Sleep(ctx, settleTime); err != nil {
		return err
	}
	silent := func(m *fleetMode) *freshness { return &m.silent }
	if s.silent, s.silentCPU, err = b.lose(ctx, f, 1, syscall.SIGSTOP, silent); err != nil {
		return fmt.Errorf("silent: %w", err)
	}
	b.resolvers[1].process.Kill()
	return b.start(ctx, b.resolvers[1])
}

// lose sends a resolver a signal, changes the name that all hold, and waits until all agents have subscribed at the other one.
func (b *fleetBench) lose(ctx context.Context, f *fleet, which int, signal syscall.Signal, of func(*fleetMode) *freshness) (events, float64, error) {
	w, err := b.watch(ctx)
	if err != nil {
		return events{}, 0, err
	}
	defer w.stop()
	begin, err := b.resolvers[1-which].begin()
	if err != nil {
		return events{}, 0, err
	}
	f.begin(len(b.everyone.holders))
	b.resolvers[which].process.Signal(signal)
	old, at, err := b.changeEveryone(ctx, nil)
	if err != nil {
		return events{}, 0, err
	}
	got, err := f.await(ctx, phaseLimit)
	if err != nil {
		return got, 0, err
	}
	cpu, _, err := b.resolvers[1-which].used(begin)
	if err := errors.Join(err, w.until(ctx, b.everyone.address())); err != nil {
		return got, cpu, err
	}
	for mode, answers := range w.stop() {
		of(b.report.mode(mode)).add(answers, old, at)
	}
	return got, cpu, nil
}
