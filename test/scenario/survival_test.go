// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/watch/watchtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

const survivalFiles = `
-- local --
cluster: {resolver: local, kubeconfig: $DIR/kubeconfig}
-- central --
cluster: {resolver: central, central: {addresses: ["192.0.2.53"]}}
-- rest --
forward: [{zone: ".", to: ["192.0.2.1"]}]
snapshot: {folder: $DIR/snapshot, period: 1h}
cache:
  keep:
    names: [registry.example, login.example, typo.example, zero.example]
-- kubeconfig --
apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "SERVER"}}]
users: [{name: test, user: {token: test}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
-- example --
example.          3600 IN SOA ns.example. host.example. 1 3600 600 86400 20
registry.example.  300 IN CNAME edge.example.
edge.example.       60 IN A 1.1.1.1
login.example.      30 IN A 1.1.1.2
login.example.      30 IN AAAA 2001:db8::2
zero.example.        0 IN A 1.1.1.3
busy.example.      300 IN A 1.1.1.4
idle.example.      300 IN A 1.1.1.5
-- cluster --
cluster.local.              30 IN SOA ns.cluster.local. host.cluster.local. 1 3600 600 86400 5
web.shop.svc.cluster.local.  5 IN A 10.96.0.7
`

// A survivor is a question, and for how long it is answered after everything else has ended.
type survivor struct {
	name  string
	rtype uint16
	idle  bool          // pods do not ask; it is checked each hour
	ttl   time.Duration // of the last answer: the answer is not marked stale before
	until time.Duration // the last answer comes then, or up to a TTL later; day: all the time
	why   string        // not longer
}

const day = 24 * time.Hour

// survivors are the questions. Each is asked once before the outage.
func survivors(mode string) []survivor {
	const window = "serveStale.for has passed"
	list := []survivor{
		{name: "registry.example.", rtype: dns.TypeA, ttl: time.Minute, until: day},
		{name: "registry.example.", rtype: dns.TypeAAAA, ttl: 20 * time.Second, until: day},
		{name: "login.example.", rtype: dns.TypeA, idle: true, ttl: 30 * time.Second, until: day},
		{name: "login.example.", rtype: dns.TypeAAAA, ttl: 30 * time.Second, until: day},
		{name: "typo.example.", rtype: dns.TypeA, ttl: 20 * time.Second, until: time.Hour, why: "a denial is not kept: " + window},
		{name: "zero.example.", rtype: dns.TypeA, until: 0, why: "TTL 0: the answer must not be cached"},
		{name: "busy.example.", rtype: dns.TypeA, ttl: 5 * time.Minute, until: time.Hour, why: window},
		{name: "idle.example.", rtype: dns.TypeA, idle: true, ttl: 5 * time.Minute, until: time.Hour, why: window},
		{name: "new.example.", rtype: dns.TypeA, until: -1, why: "never asked before"},
		{name: "web.shop.svc.cluster.local.", rtype: dns.TypeA, ttl: 30 * time.Second, until: day},
	}
	if mode == "central" {
		last := &list[len(list)-1]
		last.ttl, last.until, last.why = 5*time.Second, time.Hour, "mode central has no zone: "+window
	}
	return list
}

// TestSurvival ends the API server, the central resolver and the upstreams for four hours, in a soak for a day, and restarts the agent each
// hour. The log lists what is not answered throughout.
func TestSurvival(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"local", "central"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			dir, archive := t.TempDir(), txtar.Parse([]byte(survivalFiles))
			end := before(t, mode, dir, archive)
			synctest.Test(t, func(t *testing.T) {
				s := newScenarioRun(t, archive, dir, synctest.Wait)
				began := time.Now()
				s.clock = func() time.Time { return end.Add(time.Since(began)) }
				s.survive(mode)
			})
		})
	}
}

// configOf returns the configuration of a mode.
func (s *scenarioRun) configOf(mode string) {
	s.files["config"] = s.files[mode] + s.files["rest"]
	cfg, err := s.config("config")
	assert.NoError(s.t, err)
	s.start(cfg)
}

// before runs the agent, in real time, until it has an answer to each question. It returns when it has stopped.
func before(t *testing.T, mode, dir string, archive *txtar.Archive) time.Time {
	t.Helper()
	api := watchtest.New(time.Now)
	api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	api.Put(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7"}},
	})
	server := httptest.NewServer(api)
	defer server.Close()
	for i := range archive.Files {
		archive.Files[i].Data = []byte(strings.ReplaceAll(string(archive.Files[i].Data), "SERVER", server.URL))
	}
	s := newScenarioRun(t, archive, dir, func() { time.Sleep(10 * time.Millisecond) })
	assert.NoError(t, s.upstream([]string{"192.0.2.1:53", "zone", "example"}))
	assert.NoError(t, s.upstream([]string{"192.0.2.53:53", "zone", "cluster"}))
	s.configOf(mode)
	for s.agent.Status().State != "ready" {
		time.Sleep(10 * time.Millisecond)
	}
	for _, q := range survivors(mode) {
		if q.until >= 0 {
			assert.NoError(t, s.query([]string{q.name, dns.TypeToString[q.rtype]}))
			if s.last.msg == nil || s.last.msg.Rcode != dns.RcodeSuccess && s.last.msg.Rcode != dns.RcodeNameError {
				t.Fatalf("before the outage %s is answered %v", q.name, s.last.msg)
			}
		}
	}
	s.end()
	return time.Now()
}

// survive runs the agent through the outage.
func (s *scenarioRun) survive(mode string) {
	const step = 10 * time.Minute
	length := proctest.OrdinaryOrSoak(4*time.Hour, day)
	assert.NoError(s.t, s.upstream([]string{"192.0.2.1:53", "silent"}))
	assert.NoError(s.t, s.upstream([]string{"192.0.2.53:53", "silent"}))
	s.configOf(mode)
	began, list := time.Now(), survivors(mode)
	missing := map[string]string{}
	for at := step; at <= length; at += step {
		time.Sleep(at - time.Since(began))
		if at%time.Hour == 0 && at < length {
			assert.NoError(s.t, s.restart(nil))
		}
		for _, q := range list {
			if q.idle && at%time.Hour != 0 {
				continue
			}
			assert.NoError(s.t, s.query([]string{q.name, dns.TypeToString[q.rtype]}))
			s.judge(&q, time.Since(began), missing)
		}
	}
	s.end()
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		s.t.Logf("not answered throughout: %s: %s", name, missing[name])
	}
	for _, q := range list {
		if _, lost := missing[q.name]; lost != (q.until < day) {
			s.t.Errorf("%s: lost %t, want %t", q.name, lost, q.until < day)
		}
	}
}

// judge compares the last reply with what the question should get that long after the end of everything else.
func (s *scenarioRun) judge(q *survivor, at time.Duration, missing map[string]string) {
	r, kind := s.last.msg, dns.TypeToString[q.rtype]
	if r == nil {
		s.t.Errorf("after %s %s %s got no reply", at, q.name, kind)
		return
	}
	ede := -1
	if opt := r.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				ede = int(e.InfoCode)
			}
		}
	}
	answered := r.Rcode == dns.RcodeSuccess || r.Rcode == dns.RcodeNameError
	stale := ede == wire.EDEStaleAnswer || ede == wire.EDEStaleNXDomain
	switch {
	case answered && at > q.ttl && !stale:
		s.t.Errorf("after %s %s %s is not marked stale (extended error %d)", at, q.name, kind, ede)
	case !answered && at <= q.until:
		s.t.Errorf("after %s %s %s is lost: %s, extended error %d", at, q.name, kind, dns.RcodeToString[r.Rcode], ede)
	case answered && at > q.until+q.ttl:
		s.t.Errorf("after %s %s %s is still answered", at, q.name, kind)
	case !answered && missing[q.name] == "":
		missing[q.name] = fmt.Sprintf("from %s on %s, extended error %d: %s", at.Round(time.Minute), dns.RcodeToString[r.Rcode], ede, q.why)
	}
	if answered && s.last.took > time.Second {
		s.t.Errorf("after %s %s %s took %s", at, q.name, kind, s.last.took)
	}
}
