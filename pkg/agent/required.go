// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/admin/timeline"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/plain"
	"github.com/nodecache/node-cache/pkg/remote"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/retry"
	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	requiredTimeout = 5 * time.Second // bounds one check of all names

	// Pauses between two checks, before the random part.
	requiredRetry     = time.Second
	requiredRetryLast = 5 * time.Second
)

// An unresolved name is one of requiredNames that has no address, and why.
type unresolved struct {
	name string
	err  error
}

func (u *unresolved) Error() string { return fmt.Sprintf("%s has no address: %s", u.name, u.err) }

// Why a name has no address.
var (
	errNoAddress = errors.New("it has neither an A nor an AAAA record")
	errNoAnswer  = fmt.Errorf("no answer within %s", requiredTimeout)
	errDropped   = errors.New("the query was dropped")
)

// checkNames asks r for names, past the cache and the fallback: neither shows that the configuration of r works. It returns those
// without an address, in the order of names. The parts of r must run.
func (b *builder) checkNames(ctx context.Context, r *generation, names []string) (failed []*unresolved) {
	if len(names) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requiredTimeout)
	defer cancel()
	trial, err := b.trial(r)
	results := make([]error, len(names))
	guard := panics.Guard{Where: "requiredNames", Log: b.log, Count: &b.panics}
	var asking sync.WaitGroup
	for i, name := range names {
		results[i] = err
		if err == nil {
			asking.Go(func() {
				results[i] = guard.Do(ctx, func() error { return findAddress(ctx, trial, name) })
			})
		}
	}
	asking.Wait()
	for i, err := range results {
		if err != nil {
			failed = append(failed, &unresolved{names[i], err})
		}
	}
	return failed
}

// trial returns a resolver that answers as r does, with a cache of its own and without the fallback. Its queries are counted as queries
// to the upstreams of r only, and are in no log of queries.
func (b *builder) trial(r *generation) (*resolve.Resolver, error) {
	own := *r
	own.fallback = nil
	var err error
	if own.cache, err = cache.New(cache.Config{Size: cache.MinSize}, time.Now()); err != nil {
		return nil, err
	}
	plan, err := b.plan(&own)
	if err != nil {
		return nil, err
	}
	plan.Tap, plan.QueryLog, plan.Watchers, plan.Pods, plan.SearchPath, plan.Copied = nil, nil, nil, nil, false, nil
	return resolve.New(resolve.Config{Plan: plan, Now: time.Now, Rand: rand.Reader, Log: b.log})
}

// findAddress returns why a name has no address.
func findAddress(ctx context.Context, from *resolve.Resolver, name string) error {
	for _, rrtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		r, err := askResolver(ctx, from, new(dns.Msg).SetQuestion(name, rrtype).SetEdns0(dns.DefaultMsgSize, false))
		switch {
		case err != nil:
			return err
		case r.Rcode != dns.RcodeSuccess:
			return rcodeError(r)
		case r.Truncated || slices.ContainsFunc(r.Answer, func(rr dns.RR) bool { return rr.Header().Rrtype == rrtype }):
			return nil
		}
	}
	return errNoAddress
}

// rcodeError returns the error that a reply means, with what its Extended DNS Errors say.
func rcodeError(r *dns.Msg) error {
	texts := []string{dns.RcodeToString[r.Rcode]}
	if opt := r.IsEdns0(); opt != nil {
		for _, option := range opt.Option {
			e, is := option.(*dns.EDNS0_EDE)
			if !is {
				continue
			}
			texts = append(texts, dns.ExtendedErrorCodeToString[e.InfoCode])
			if e.ExtraText != "" {
				texts = append(texts, plain.Line(remote.Text(e.ExtraText)))
			}
		}
	}
	return errors.New(strings.Join(texts, ", "))
}

// askResolver asks a resolver in this process, as a client of this host, and waits for its reply.
func askResolver(ctx context.Context, from *resolve.Resolver, q *dns.Msg) (*dns.Msg, error) {
	pkt, err := q.Pack()
	if err != nil {
		return nil, err
	}
	client := &wire.Peer{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)}
	worker, reply := from.NewWorker(), make(replies, 1)
	msg, verdict := worker.AnswerFromMemory(pkt, client, time.Now(), nil) //nolint:contextcheck // it never blocks
	switch verdict {
	case wire.Answered:
		reply <- msg
	case wire.Missed:
		worker.Resolve(client, time.Now(), reply) //nolint:contextcheck // likewise
	case wire.Dropped:
		return nil, errDropped
	}
	worker.Flush(time.Now())
	select {
	case msg = <-reply:
	case <-ctx.Done():
		return nil, errNoAnswer
	}
	r := new(dns.Msg)
	if len(msg) == 0 {
		return nil, errDropped
	}
	return r, r.Unpack(msg)
}

// replies receives the one reply of a query.
type replies chan []byte

// Reply implements [wire.Replier].
func (r replies) Reply(msg []byte, _ *wire.SendBatch) { r <- slices.Clone(msg) }

// A nameGate keeps an agent from the queries of its node until its requiredNames have resolved once. After that the gate is open:
// an outage must not make agents unready.
type nameGate struct {
	check    func(ctx context.Context, r *generation) []*unresolved
	running  *atomic.Pointer[generation]
	log      *slog.Logger
	open     chan struct{}                 // closed once the agent may take the queries
	resolved *generation                   // its names resolved while a predecessor answered; nil: none
	failed   atomic.Pointer[[]*unresolved] // result of the last check; nil or empty: none failed
}

// openUnlessNeeded opens the gate of an agent that is about to serve, unless it still has names to wait for. served reports whether
// the agent's configuration served this node before: then upstreams that fail at a restart must not take the zone and the cache away.
func (g *nameGate) openUnlessNeeded(served bool) {
	r := g.running.Load()
	if served || g.resolved == r || len(r.config.RequiredNames) == 0 {
		close(g.open)
	}
	g.resolved = nil
}

func (g *nameGate) isOpen() bool {
	select {
	case <-g.open:
		return true
	default:
		return false
	}
}

// await checks the names until all have an address, and returns the generation with which they do. It returns nil if ctx ends or
// leaving is closed before that. After each check that fails, it calls failing. Another configuration is checked at once.
func (g *nameGate) await(ctx context.Context, leaving <-chan struct{}, failing func(why error)) *generation {
	defer g.failed.Store(nil)
	pause := retry.Backoff{First: requiredRetry, Last: requiredRetryLast}
	for waits := false; ; {
		r := g.running.Load()
		failed, end := g.checkUntil(ctx, r, leaving)
		switch {
		case end:
			return nil
		case g.running.Load() != r:
			continue // the result is about a configuration that is not in use any more
		case len(failed) == 0:
			if waits {
				g.log.InfoContext(ctx, "required names resolve")
			}
			return r
		case !waits:
			waits = true
			g.log.WarnContext(ctx, "waiting until required names resolve", "err", failed[0], "failed", len(failed))
		}
		g.failed.Store(&failed)
		failing(failed[0])
		next := time.NewTimer(pause.Next())
		select {
		case <-ctx.Done():
		case <-leaving:
		case <-r.replaced:
			pause.Reset()
		case <-next.C:
		}
		next.Stop()
	}
}

// checkUntil checks the names of r. It ends early, with any result, once another configuration is in use, and with end once ctx has
// ended or leaving is closed: a predecessor that leaves does not wait for long.
func (g *nameGate) checkUntil(ctx context.Context, r *generation, leaving <-chan struct{}) (failed []*unresolved, end bool) {
	checking, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer stop()
		select {
		case <-leaving:
		case <-r.replaced:
		case <-checking.Done():
		}
	}()
	failed = g.check(checking, r)
	select {
	case <-leaving:
		return nil, true
	default:
		return failed, ctx.Err() != nil
	}
}

// notReady returns why the agent waits for its required names; nil: it does not.
func (g *nameGate) notReady() error {
	if g.isOpen() {
		return nil
	}
	if failed := g.failed.Load(); failed != nil {
		return (*failed)[0]
	}
	return errors.New("its requiredNames are being checked")
}

// problems lists the required names that fail, as one problem.
func (g *nameGate) problems() []status.Problem {
	failed := g.failed.Load()
	if failed == nil {
		return nil
	}
	var what []string
	const most = 3
	for _, u := range (*failed)[:min(most, len(*failed))] {
		what = append(what, u.Error())
	}
	if more := len(*failed) - most; more > 0 {
		what = append(what, fmt.Sprintf("and %d more", more))
	}
	return []status.Problem{{
		Reason: status.RequiredNameFails, Where: "requiredNames", What: strings.Join(what, "; "),
		Hint: "correct the configuration, or undo it: `kubectl rollout undo` in a staged installation (docs/staged.md); the agent checks again by itself",
	}}
}

// awaitBefore waits for the names while the predecessor answers. problems takes what is wrong meanwhile.
func (g *nameGate) awaitBefore(ctx context.Context, from *handover.Client, recorder *handover.Recorder, problems *timeline.Timeline) {
	g.resolved = g.await(ctx, from.PredecessorLeaving(), func(why error) {
		recorder.WaitFor(fmt.Sprintf("its requiredNames, before taking over from agent %s: %s", from.Predecessor, why))
		problems.Observe(ctx, time.Now(), g.problems(), nil) // Agent.watchProblems runs once this agent serves
	})
	if g.resolved == nil && ctx.Err() == nil {
		g.log.WarnContext(ctx, "taking over before required names resolve: predecessor stops", "agent", from.Predecessor)
	}
}

// checkReload returns an error if a name that resolves with old does not resolve with r. If it fails with both, the upstreams have
// an outage, and that must not keep a change from being applied.
func (b *builder) checkReload(ctx context.Context, r, old *generation) error {
	if onlyStandby(r.config, old.config) {
		return nil
	}
	var names []string
	failed := b.checkNames(ctx, r, r.config.RequiredNames)
	for _, u := range failed {
		names = append(names, u.name)
	}
	before := b.checkNames(ctx, old, names)
	for _, u := range failed {
		if ctx.Err() == nil && !slices.ContainsFunc(before, func(o *unresolved) bool { return o.name == u.name }) {
			return &hint.Error{
				Err:  fmt.Errorf("requiredNames: with this configuration %w", u),
				Hint: "the name resolves with the running configuration, which stays: correct the new one",
			}
		}
	}
	return nil
}

// onlyStandby reports whether two configurations differ in standby only, which must not wait for anything.
func onlyStandby(a, b config.Config) bool {
	a.Standby = b.Standby
	return reflect.DeepEqual(a, b)
}
