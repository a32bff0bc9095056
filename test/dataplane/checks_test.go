// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
)

// lease is what the agents here are configured with, which is the default.
const lease = 3 * time.Second

// fallbackLimit is what the fallback may take to answer: the lease and half a second.
const fallbackLimit = lease + 500*time.Millisecond

// ms rounds for output.
func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// expectAnswers has a pod ask for a name of the cluster and for one that is forwarded, over UDP and TCP.
func (r *rig) expectAnswers(t *testing.T, from *pod) {
	t.Helper()
	for _, network := range []string{"udp", "tcp"} {
		proctest.Eventually(t, limit, from.Name+" has the address of a Service over "+network, func() bool {
			return slices.Equal(r.addresses(from, network, "kubernetes.default.svc.cluster.local."), []string{"10.96.0.1"})
		})
		who, err := nodetest.Ask(from.Host, r.target, network)
		assert.NoError(t, err)
		assert.Equal(t, "who answered over "+network, byAgent, who)
	}
}

// addresses are the IPv4 addresses of a name, as the agent tells a pod; none when it does not answer.
func (r *rig) addresses(from *pod, network, name string) (all []string) {
	for _, rr := range r.ask(from, network, name, dns.TypeA) {
		if a, ok := rr.(*dns.A); ok {
			all = append(all, a.A.String())
		}
	}
	return all
}

// ask returns the records of the agent's answer to a pod; none when it does not answer.
func (r *rig) ask(from *pod, network, name string, kind uint16) []dns.RR {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := from.Dial(ctx, network, r.target.String())
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	reply, _, err := new(dns.Client).ExchangeWithConnContext(ctx, new(dns.Msg).SetQuestion(name, kind), &dns.Conn{Conn: conn})
	if err != nil {
		return nil
	}
	return reply.Answer
}

// addressesLimit is how long an older Cilium may take to find an address: it looks for them once a minute.
const addressesLimit = time.Minute + 15*time.Second

// localLimit is how long an agent takes to say that its address is not local to Cilium, which may find that one late.
const localLimit = 2*time.Minute + 15*time.Second

// expectNoAnswers has a pod ask, which neither the agent nor the fallback answers for a known reason. The agent and the doctor say so,
// and name the setting.
func (r *rig) expectNoAnswers(t *testing.T, from *pod, known string) {
	t.Helper()
	m := r.startMeter(t, from)
	took := proctest.Eventually(t, localLimit, "/status names the problem", func() bool {
		return slices.ContainsFunc(r.status(t).Problems, func(p status.Problem) bool {
			return strings.Contains(p.What, "Cilium does not take "+agentAddr.String()) && strings.Contains(p.Hint, "local-max-addr-scope")
		})
	}, func() string { return r.adminPage(t, "/status") })
	proctest.Figure(t, "/status names the problem after %s", ms(took))
	r.expectDoctor(t, "Cilium does not take it for an address of the node: queries of pods are lost", "local-max-addr-scope")
	gone := time.Now()
	r.agent.Kill()
	if _, ok := awaitAnswers(m, byFallback, gone, fallbackLimit+2*time.Second); ok {
		t.Errorf("the fallback answers: remove the known reason %q", known)
	}
	report := m.Stop()
	if n := report.Count(nodetest.Answered); n > 0 {
		t.Errorf("%d answers: remove the known reason %q", n, known)
	}
	proctest.Figure(t, "no answers, as known: %s: %s", known, report)
}

// expectDoctor has the doctor on the node say something of Cilium, of which it sees all.
func (r *rig) expectDoctor(t *testing.T, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	out, err := r.cilium.mounts.command(ctx, nodeCache, "doctor", "--config", r.config).Output()
	t.Logf("the doctor: %v\n%s", err, out)
	for _, text := range want {
		if !strings.Contains(string(out), text) {
			t.Errorf("the doctor does not say %q", text)
		}
	}
}

// expectNoProblems waits until the agent knows of no problem: some pass by themselves.
func (r *rig) expectNoProblems(t *testing.T) {
	t.Helper()
	proctest.Eventually(t, limit, "/status has no problems", func() bool {
		s := r.status(t)
		return s.Version != "" && len(s.Problems) == 0
	}, func() string { return r.adminPage(t, "/status") })
}

// The loads of a meter.
const (
	overUDP = iota
	overTCP
)

// startMeter has a pod ask 100 times a second over UDP and 20 times over TCP, each time from a new port.
func (r *rig) startMeter(t *testing.T, from *pod) *nodetest.Meter {
	t.Helper()
	m, err := nodetest.StartMeter(nodetest.MeterConfig{
		Host: from.Host, Target: r.target, Linger: 2 * time.Second,
		Loads: []nodetest.Load{{Network: "udp", Rate: 100, Fresh: true}, {Network: "tcp", Rate: 20, Fresh: true}},
	})
	assert.NoError(t, err)
	t.Cleanup(func() { m.Stop() })
	return m
}

// awaitAnswers waits until a server has answered over UDP and over TCP what was asked since a time, and says when.
func awaitAnswers(m *nodetest.Meter, who string, since time.Time, limit time.Duration) (last time.Time, ok bool) {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) { // answers are noted, not announced
		udp, ok := m.FirstBy(overUDP, who, since)
		tcp, too := m.FirstBy(overTCP, who, since)
		if ok && too {
			return time.UnixMilli(max(udp.UnixMilli(), tcp.UnixMilli())), true
		}
	}
	return last, false
}

// expectFallback kills, stops or ends the agent while a pod asks. The fallback is to answer in time. Then the agent is back.
func (r *rig) expectFallback(t *testing.T, from *pod, by syscall.Signal) {
	t.Helper()
	m := r.startMeter(t, from)
	if _, ok := awaitAnswers(m, byAgent, time.Now(), limit); !ok {
		t.Fatalf("%s: the agent does not answer: %s", by, m.Stop())
	}
	gone := time.Now()
	r.agent.Signal(by)
	at, ok := awaitAnswers(m, byFallback, gone, fallbackLimit+2*time.Second)
	took := at.Sub(gone)
	switch {
	case !ok:
		t.Errorf("%s: the fallback does not answer: %s", by, m.Report().Between(gone, time.Now()))
	case took > fallbackLimit:
		t.Errorf("%s: the fallback answers after %s, want %s", by, ms(took), fallbackLimit)
	default:
		proctest.Figure(t, "%s: the fallback answers after %s: %s", by, ms(took), m.Report().Between(gone, time.Now()))
	}
	back := time.Now()
	if by == syscall.SIGSTOP {
		r.agent.Signal(syscall.SIGCONT)
	} else {
		if err := r.agent.Wait(t, limit); by == syscall.SIGTERM && err != nil {
			t.Errorf("%s: the agent ended with %v", by, err)
		}
		r.launch(t)
	}
	if _, ok := awaitAnswers(m, byAgent, back, limit); !ok {
		t.Errorf("%s: the agent is not back: %s", by, m.Report().Between(back, time.Now()))
	}
	m.Stop()
	r.awaitServing(t)
}

// expectHandOver starts the next agent beside the one that serves, which then ends, as a rollout does: one of the same version, then one
// of another. No query is lost.
func (r *rig) expectHandOver(t *testing.T, from *pod) {
	t.Helper()
	m := r.startMeter(t, from)
	times := proctest.OrdinaryOrSoak(2, 10)
	for i := range times {
		old, next := r.agent, []string{nodeCache, upgraded}[i%2]
		r.launchVersion(t, next)
		proctest.Eventually(t, limit, "the next agent has taken over and holds the lease", func() bool {
			log := r.agent.Stderr.String()
			return strings.Contains(log, `"taken over"`) && strings.Contains(log, "handover socket listening") && strings.Contains(log, "lease acquired")
		})
		old.Signal(syscall.SIGTERM)
		if err := old.Wait(t, limit); err != nil {
			t.Errorf("an agent that handed over ended with %v", err)
		}
	}
	report := m.Stop()
	if report.Lost() > 0 {
		t.Errorf("handed over %d times: %s", times, report)
	}
	proctest.Figure(t, "handed over %d times, the last time to another version: %s", times, report)
	proctest.Eventually(t, limit, "the agent is of the other version", func() bool { return r.status(t).Version == versionUpgraded })
}

// denial denies pods of one label to send anything.
const denial = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: denied, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: %s}}
  egressDeny: [{toEntities: [all]}]
`

// deniedLimit is how much earlier than this test a policy engine, on a busy machine, may say that it acts on a policy.
const deniedLimit = 500 * time.Millisecond

// expectDenied denies a pod by a policy of Cilium's, and no other.
func (r *rig) expectDenied(t *testing.T, from, other *pod, permitted time.Duration) {
	t.Helper()
	r.expectDeniedBy(t, from, other, permitted, "/apis/cilium.io/v2/namespaces/default/ciliumnetworkpolicies/denied", fmt.Sprintf(denial, from.Name),
		func() int { return r.cilium.revision(t, from) })
}

// expectDeniedBy denies a pod by a policy, and no other. Once the policy engine acts on it, which increases revision, the pod is answered no
// longer than the kernel is permitted to.
func (r *rig) expectDeniedBy(t *testing.T, from, other *pod, permitted time.Duration, path, policy string, revision func() int) {
	t.Helper()
	m := r.startMeter(t, from)
	if _, ok := awaitAnswers(m, byAgent, time.Now(), limit); !ok {
		t.Fatalf("before a policy the agent does not answer: %s", m.Stop())
	}
	began, before := time.Now(), revision()
	assert.NoError(t, r.apply(t, path, policy))
	proctest.Eventually(t, limit, "the policy engine acts on the policy", func() bool { return revision() > before })
	acts := time.Now()
	const quiet = time.Second
	proctest.Eventually(t, limit, "a denied pod has no answers", func() bool {
		return time.Since(acts) > quiet && m.Report().Between(time.Now().Add(-quiet), time.Now()).Count(nodetest.Answered) == 0
	})
	var last time.Time
	for _, o := range m.Report().Outcomes {
		if o.Result == nodetest.Answered {
			last = o.Sent
		}
	}
	if took := last.Sub(acts); took > deniedLimit+permitted {
		t.Errorf("denied: the last answer is to a query %s after the policy engine acts", ms(took))
	}
	proctest.Figure(t, "denied: the policy engine acts after %s, and the last answer is to a query %s after the policy", ms(acts.Sub(began)), ms(last.Sub(began)))
	for _, network := range []string{"udp", "tcp"} {
		if who, err := nodetest.Ask(other.Host, r.target, network); who != byAgent {
			t.Errorf("a pod that is not denied, over %s: %s, %v", network, who, err)
		}
	}
	r.remove(t, path)
	if _, ok := awaitAnswers(m, byAgent, time.Now(), limit); !ok {
		t.Errorf("not denied any more: %s", m.Report())
	}
	m.Stop()
}

// expectManyPods makes pods that each ask at once.
func (r *rig) expectManyPods(t *testing.T) {
	t.Helper()
	pods, began := proctest.OrdinaryOrSoak(10, 100), time.Now()
	for i := range pods {
		p := r.newPod(t, fmt.Sprintf("many-%d", i))
		if who, err := nodetest.Ask(p.Host, r.target, "udp"); err != nil || who != byAgent {
			t.Errorf("the first query of %s: %s, %v", p.Name, who, err)
		}
	}
	proctest.Figure(t, "%d pods made and answered in %s", pods, ms(time.Since(began)))
}

// applyPolicy applies a policy that denies all ports of the node but one, and waits until a pod cannot reach another.
func (r *rig) applyPolicy(t *testing.T, from *pod, text string) {
	t.Helper()
	other, err := nodetest.Serve(r.Node, netip.AddrPortFrom(r.Node.IPv4, 5353), "other")
	assert.NoError(t, err)
	t.Cleanup(other.Close)
	reached := func() bool {
		who, _ := nodetest.Ask(from.Host, netip.AddrPortFrom(r.Node.IPv4, 5353), "udp")
		return who == "other"
	}
	if !reached() {
		t.Fatal("a pod cannot reach the node before there is a policy")
	}
	assert.NoError(t, r.apply(t, "/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies/dns", text))
	proctest.Eventually(t, limit, "the policy acts", func() bool { return !reached() })
}
