// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/proctest"
)

// config is what /status says of the configuration.
type config struct {
	Config struct {
		Generation int
		LastOK     bool
	}
	Cache struct{ CapacityBytes int64 }
}

// testTuning edits the ConfigMap as the README has it, with an editor that makes the cache smaller, and waits until both agents
// have taken that. The kubelet's part is the longer one: it writes the file.
func (b *harness) testTuning(t *testing.T, block []string) {
	t.Helper()
	clients := b.startClients(t, "tunes")
	before := b.configs(t)
	began := time.Now()
	b.runBlock(t, block, "KUBE_EDITOR=sed -i 's/size: 64Mi/size: 48Mi/'")
	b.eventually(t, "both agents have a smaller cache", func() bool {
		for i, c := range b.configs(t) {
			if c.Config.Generation <= before[i].Config.Generation || c.Cache.CapacityBytes >= before[i].Cache.CapacityBytes {
				return false
			}
		}
		return true
	})
	b.awaitAgentsReady(t)
	proctest.Figure(t, "both agents run with the change %s after the edit", since(began))
	got := takeCounts(t, clients)
	proctest.Figure(t, "meanwhile: %s", got)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
}

// configs asks the agent of each node, as a program of the node does.
func (b *harness) configs(t *testing.T) []config {
	t.Helper()
	var all []config
	for _, n := range b.Nodes {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://169.254.20.10:9253/status", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := (&http.Client{Transport: &http.Transport{DialContext: n.Dial, DisableKeepAlives: true}}).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		var c config
		err = json.NewDecoder(answer.Body).Decode(&c)
		_ = answer.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// testRefusedConfig applies a change that is wrong, and then takes it back.
func (b *harness) testRefusedConfig(t *testing.T) {
	t.Helper()
	clients := b.startClients(t, "refuses")
	before := b.configs(t)
	const edit = "kubectl -n kube-system edit configmap node-cache"
	began := time.Now()
	b.runShell(t, edit, "KUBE_EDITOR=sed -i 's/size: 48Mi/size: plenty/'")
	b.eventually(t, "both agents refuse it with an Event", func() bool { return len(b.events(t, "ConfigRefused", began)) == 2 })
	proctest.Figure(t, "2 Events %s after the edit; one says: %s", since(began), b.events(t, "ConfigRefused", began)[0])
	for i, c := range b.configs(t) {
		if c.Config.LastOK || c.Config.Generation != before[i].Config.Generation || c.Cache.CapacityBytes != before[i].Cache.CapacityBytes {
			t.Errorf("an agent that refused a change: %+v, before %+v", c, before[i])
		}
	}
	got := takeCounts(t, clients)
	proctest.Figure(t, "meanwhile: %s", got)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	b.runShell(t, edit, "KUBE_EDITOR=sed -i 's/size: plenty/size: 64Mi/'")
	b.eventually(t, "both agents take what is right", func() bool { return len(b.events(t, "ConfigApplied", began)) == 2 })
	b.awaitAgentsReady(t)
}

// events are the messages of events about agents, of a reason and since then. Some have times in seconds only.
func (b *harness) events(t *testing.T, reason string, from time.Time) []string {
	t.Helper()
	list, err := b.Client().CoreV1().Events("kube-system").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason})
	if err != nil {
		t.Fatal(err)
	}
	var messages []string
	for i := range list.Items {
		e := &list.Items[i]
		if strings.HasPrefix(e.InvolvedObject.Name, "node-cache-") && !last(e).Before(from.Truncate(time.Second)) {
			messages = append(messages, e.Message)
		}
	}
	return messages
}

// last is when an event was seen last.
func last(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	default:
		return e.EventTime.Time
	}
}
