// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// The objects that an agent with its configuration in the API needs, all in one namespace.
const (
	systemSpace = "kube-system"
	agentName   = "node-cache"
	agentPod    = "node-cache-x1"
)

// configured is an agent whose configuration is a ConfigMap.
type configured struct {
	*node
	cluster *kubetest.Cluster
	kept    string // folder of the last good configuration
	pod     *corev1.Pod
}

// TestConfigMap edits the ConfigMap of a running agent, breaks it, takes it away, and takes the API server away.
func TestConfigMap(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Start(t, kubetest.Options{Users: []string{account}})
	a := newConfigured(t, cluster)
	a.grant(t, true)
	a.edit(t, "start")
	a.start(t)
	a.awaitVersion(t, "start")
	if s := a.source(t); s.Source != "configmap" || s.Object != systemSpace+"/"+agentName {
		t.Errorf("/status of the source: %+v", s)
	}
	steps := []struct {
		name string
		step func(*testing.T)
	}{
		{"edits", a.testEdits},
		{"refused", a.testRefused},
		{"deleted", a.testDeleted},
		{"API server killed", a.testServerKilled},
		{"API server away at the start", a.testServerAbsentAtStart},
		{"no right at the start", a.testWithoutPermission},
	}
	for _, s := range steps {
		if !t.Run(s.name, s.step) {
			return // the next ones begin where this one was to end
		}
	}
}

func newConfigured(t *testing.T, c *kubetest.Cluster) *configured {
	t.Helper()
	a := &configured{cluster: c, kept: filepath.Join(t.TempDir(), "kept"), node: &node{}}
	kubetest.Apply(t, c, kubetest.Pod{Namespace: systemSpace, Name: agentPod, Node: "node-1"}.Object())
	var err error
	if a.pod, err = c.Client().CoreV1().Pods(systemSpace).Get(t.Context(), agentPod, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	a.settings = settings{
		command: "agent", addr: proctest.FreeAddr(t), root: proctest.FreeAddr(t), admin: proctest.FreeAddr(t),
		cluster: []string{"resolver: none"},
		env: []string{
			"POD_NAMESPACE=" + systemSpace, "POD_NAME=" + agentPod, "POD_UID=" + string(a.pod.UID), "NODE_NAME=node-1",
		},
	}
	return a
}

// grant gives the account what the daemonset's does: to list and watch the one ConfigMap, and to write events.
func (c *configured) grant(t *testing.T, configMap bool) {
	t.Helper()
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}}}
	if configMap {
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{agentName}, Verbs: []string{"list", "watch"},
		})
	}
	name := metav1.ObjectMeta{Namespace: systemSpace, Name: agentName}
	kubetest.Apply(t, c.cluster,
		&rbacv1.Role{ObjectMeta: name, Rules: rules},
		&rbacv1.RoleBinding{
			ObjectMeta: name,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: agentName},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: account}},
		})
}

// edit writes a configuration with this version into the ConfigMap.
func (c *configured) edit(t *testing.T, version string) {
	t.Helper()
	c.settings.more = fmt.Sprintf("identity: {version: %q}", version)
	c.put(t, c.settings.yaml())
}

// put writes a text into it.
func (c *configured) put(t *testing.T, text string) {
	t.Helper()
	kubetest.Apply(t, c.cluster, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: systemSpace, Name: agentName}, Data: map[string]string{"node-cache.yaml": text},
	})
}

func (c *configured) start(t *testing.T) {
	t.Helper()
	c.launch(t, "--config-map", systemSpace+"/"+agentName, "--kubeconfig", c.cluster.Kubeconfig(account), "--last-good", c.kept)
}

// version is what the agent says it is, which is in the configuration.
func (c *configured) version() string {
	q := new(dns.Msg).SetQuestion("version.bind.", dns.TypeTXT)
	q.Question[0].Qclass = dns.ClassCHAOS
	m, _, err := (&dns.Client{Timeout: clientTimeout}).Exchange(q, c.settings.addr.String())
	if err != nil || len(m.Answer) != 1 {
		return ""
	}
	return strings.Join(m.Answer[0].(*dns.TXT).Txt, "")
}

// awaitVersion waits for a configuration and gives how long that took.
func (c *configured) awaitVersion(t *testing.T, want string) time.Duration {
	t.Helper()
	began := time.Now()
	for c.version() != want {
		if time.Since(began) > time.Minute {
			t.Fatalf("the agent does not take configuration %q; /status: %+v", want, c.source(t))
		}
		time.Sleep(2 * time.Millisecond)
	}
	return time.Since(began)
}

// sourceStatus is what /status says of the source.
type sourceStatus struct {
	Source, Object string
	Generation     int
	LastOk         bool
	LastError      string
	Unread         *struct{ What, Hint string }
	LastGood       struct {
		InUse bool
		Kept  string
	}
}

func (c *configured) source(t *testing.T) sourceStatus {
	t.Helper()
	var page struct{ Config sourceStatus }
	c.Status(t, &page)
	return page.Config
}

// testEdits measures how long an edit takes to be in use.
func (c *configured) testEdits(t *testing.T) {
	t.Helper()
	const edits = 20
	before := c.source(t).Generation
	var took []time.Duration
	for n := range edits {
		version := fmt.Sprintf("edit %d", n)
		c.edit(t, version) // returns when the API server has it
		took = append(took, c.awaitVersion(t, version))
	}
	slices.Sort(took)
	proctest.Figure(t, "20 edits of a ConfigMap: in use %s later at the median, %s at most", took[10].Round(time.Millisecond), took[19].Round(time.Millisecond))
	if took[19] > atLatest {
		t.Errorf("an edit took %s to be in use", took[19])
	}
	// The last one is in use before it is counted.
	proctest.Eventually(t, limit, "each edit is counted", func() bool { return c.source(t).Generation == before+edits },
		func() string { return fmt.Sprintf("/status after generation %d: %+v", before, c.source(t)) })
}

// testRefused writes a mistake, and mends it. The pod tells of both.
func (c *configured) testRefused(t *testing.T) {
	t.Helper()
	c.put(t, c.settings.yaml()+"cache: {sise: 1Mi}\n")
	proctest.Eventually(t, limit, "the mistake is refused", func() bool { return !c.source(t).LastOk })
	event := c.awaitEvent(t, "ConfigRefused")
	if event.Type != corev1.EventTypeWarning || !strings.Contains(event.Message, `cache.sise: unknown key (hint: did you mean "size"?)`) {
		t.Errorf("event: %s %s", event.Type, event.Message)
	}
	if about := event.InvolvedObject; about.Kind != "Pod" || about.Name != agentPod || about.UID != c.pod.UID || event.Source.Host != "node-1" {
		t.Errorf("event about %+v from %+v", event.InvolvedObject, event.Source)
	}
	if got := c.version(); got != "edit 19" {
		t.Errorf("the agent runs %q", got)
	}
	if s := c.status(t); len(s.Problems) == 0 || s.Problems[0].Where != "config" || !strings.Contains(s.Problems[0].Hint, "ConfigMap kube-system/node-cache") {
		t.Errorf("/status: %+v", s.Problems)
	}
	c.edit(t, "fixed")
	c.awaitVersion(t, "fixed")
	if event := c.awaitEvent(t, "ConfigApplied"); event.Type != corev1.EventTypeNormal {
		t.Errorf("event: %s %s", event.Type, event.Message)
	}
	if s := c.status(t); len(s.Problems) > 0 {
		t.Errorf("/status: %+v, want no problems", s.Problems)
	}
}

// awaitEvent waits for an event about the pod.
func (c *configured) awaitEvent(t *testing.T, reason string) corev1.Event {
	t.Helper()
	var found corev1.Event
	proctest.Eventually(t, limit, "an event "+reason, func() bool {
		list, err := c.cluster.Client().CoreV1().Events(systemSpace).List(t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.name=" + agentPod + ",reason=" + reason,
		})
		if err != nil || len(list.Items) == 0 {
			return false
		}
		found = list.Items[len(list.Items)-1]
		return true
	}, func() string { return c.Stderr.String() })
	return found
}

// testDeleted takes the ConfigMap away, and makes it anew.
func (c *configured) testDeleted(t *testing.T) {
	t.Helper()
	assert.NoError(t, c.cluster.Client().CoreV1().ConfigMaps(systemSpace).Delete(t.Context(), agentName, metav1.DeleteOptions{}))
	proctest.Eventually(t, limit, "its absence is reported", func() bool { return strings.Contains(c.source(t).LastError, "does not exist") })
	if got := c.version(); got != "fixed" {
		t.Errorf("without a ConfigMap the agent runs %q", got)
	}
	kubetest.Apply(t, c.cluster, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: systemSpace, Name: agentName}})
	proctest.Eventually(t, limit, "the missing key is reported", func() bool { return strings.Contains(c.source(t).LastError, "no key node-cache.yaml") })
	if got := c.version(); got != "fixed" {
		t.Errorf("with an empty ConfigMap the agent runs %q", got)
	}
	c.edit(t, "anew")
	took := c.awaitVersion(t, "anew")
	proctest.Figure(t, "a ConfigMap made anew is in use %s later", took.Round(time.Millisecond))
	// It answers before /status says so: what is counted is in use.
	proctest.Eventually(t, limit, "/status is content", func() bool { return c.source(t).LastOk }, func() string { return fmt.Sprintf("it says %+v", c.source(t)) })
}

// testServerKilled kills the API server, and starts it again.
func (c *configured) testServerKilled(t *testing.T) {
	t.Helper()
	c.cluster.KillAPIServer()
	proctest.Eventually(t, limit, "the failure to read is reported", func() bool { return c.source(t).Unread != nil })
	s := c.source(t)
	if !strings.Contains(s.Unread.What, "unreachable") || s.Unread.Hint == "" || !s.LastOk {
		t.Errorf("/status: %+v, %+v", s, s.Unread)
	}
	if got := c.version(); got != "anew" {
		t.Errorf("without the API server the agent runs %q", got)
	}
	c.restart(t)
	c.edit(t, "after")
	took := c.awaitVersion(t, "after")
	proctest.Figure(t, "an edit as soon as the API server is back is in use %s later", took.Round(time.Millisecond))
	proctest.Eventually(t, limit, "the recovery is reported", func() bool { return c.source(t).Unread == nil })
}

func (c *configured) restart(t *testing.T) {
	t.Helper()
	assert.NoError(t, c.cluster.StartAPIServer(t.Context()))
}

// testServerAbsentAtStart starts the agent while there is no API server.
func (c *configured) testServerAbsentAtStart(t *testing.T) {
	t.Helper()
	c.Stop(t)
	c.cluster.KillAPIServer()
	began := time.Now()
	c.start(t)
	if got := c.version(); got != "after" {
		t.Errorf("the agent begins with %q", got)
	}
	proctest.Figure(t, "without the API server an agent begins with its last good configuration after %s", time.Since(began).Round(100*time.Millisecond))
	s := c.source(t)
	if !s.LastGood.InUse || s.LastOk || s.Unread == nil || s.LastGood.Kept != "" {
		t.Errorf("/status: %+v", s)
	}
	c.awaitReady(t)
	c.restart(t)
	proctest.Eventually(t, limit, "the ConfigMap is in use", func() bool { s := c.source(t); return !s.LastGood.InUse && s.LastOk && s.Unread == nil })
	c.edit(t, "later")
	c.awaitVersion(t, "later")
}

// testWithoutPermission starts the agent when it may not read the ConfigMap, and then lets it.
func (c *configured) testWithoutPermission(t *testing.T) {
	t.Helper()
	c.Stop(t)
	c.grant(t, false)
	c.start(t)
	if got := c.version(); got != "later" {
		t.Errorf("the agent begins with %q", got)
	}
	s := c.status(t)
	const hint = "grant list and watch of configmaps in namespace kube-system, with resourceNames [node-cache]"
	if len(s.Problems) == 0 || !strings.Contains(s.Problems[0].What, "forbidden") || !strings.HasPrefix(s.Problems[0].Hint, hint) {
		t.Errorf("/status: %+v", s.Problems)
	}
	proctest.Eventually(t, limit, "the log says so too", func() bool {
		log := c.Stderr.String()
		return strings.Contains(log, "configuration source unreadable") && strings.Contains(log, hint)
	})
	c.edit(t, "granted")
	c.grant(t, true)
	took := c.awaitVersion(t, "granted")
	proctest.Figure(t, "a right that is granted shows %s later", took.Round(time.Second))
	proctest.Eventually(t, limit, "it is kept", func() bool {
		text, err := os.ReadFile(filepath.Join(c.kept, "last-good.yaml"))
		return err == nil && strings.Contains(string(text), `version: "granted"`)
	})
}
