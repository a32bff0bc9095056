// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// A configMapMount is a folder with the files of a ConfigMap, as the kubelet keeps it.
type configMapMount struct {
	dir     string
	version int
}

func newConfigMapMount(t *testing.T) *configMapMount {
	t.Helper()
	return &configMapMount{dir: t.TempDir()}
}

func (m *configMapMount) file(name string) string { return filepath.Join(m.dir, name) }

// publish swaps the files of the folder in one step: the link ..data moves to a new folder, and the old one goes.
func (m *configMapMount) publish(files map[string]string) error {
	m.version++
	folder := fmt.Sprintf("..%d", m.version)
	errs := []error{os.Mkdir(m.file(folder), 0o755)}
	for name, text := range files {
		errs = append(errs, os.WriteFile(filepath.Join(m.dir, folder, name), []byte(text), 0o644))
		if _, err := os.Lstat(m.file(name)); errors.Is(err, os.ErrNotExist) {
			errs = append(errs, os.Symlink(filepath.Join("..data", name), m.file(name)))
		}
	}
	errs = append(errs, os.Symlink(folder, m.file("..data_tmp")), os.Rename(m.file("..data_tmp"), m.file("..data")))
	if m.version > 1 {
		errs = append(errs, os.RemoveAll(m.file(fmt.Sprintf("..%d", m.version-1))))
	}
	return errors.Join(errs...)
}

// mustPublish publishes.
func (m *configMapMount) mustPublish(t *testing.T, files map[string]string) {
	t.Helper()
	assert.NoError(t, m.publish(files))
}

// launchFrom runs node-cache with the settings in a mounted folder, and with further flags.
func launchFrom(t *testing.T, s settings, m *configMapMount, flags ...string) *agent {
	t.Helper()
	config := m.file("node-cache.yaml")
	cmd := exec.Command(nodeCache, append([]string{"agent", "--config", config}, flags...)...)
	return launch(t, s, cmd, config)
}

// localSettings are those of an agent on this machine.
func localSettings(t *testing.T, to ...string) settings {
	t.Helper()
	return settings{address: "127.0.0.1", port: freePort(t), admin: freePort(t), to: to}
}

// TestLastGoodAtStart has an agent start with a mistake in its file.
func TestLastGoodAtStart(t *testing.T) {
	t.Parallel()
	kept := t.TempDir()
	s, m := localSettings(t, startScripted(t, answerA)), newConfigMapMount(t)
	m.mustPublish(t, map[string]string{"node-cache.yaml": s.yaml()})
	launchFrom(t, s, m, "--last-good", kept).Stop(t)
	m.mustPublish(t, map[string]string{"node-cache.yaml": "cache: {sise: 1Mi}\n"})
	a := launchFrom(t, s, m, "--last-good", kept)
	if r, _ := ask(t, a.addr, "www.test."); len(r.Answer) != 1 {
		t.Errorf("answer:\n%s", r)
	}
	a.awaitPage(t, "/status?format=text", "the last good one", func(page string) bool {
		return strings.Contains(page, "is in use, from "+kept) && strings.Contains(page, "the last file was refused: ")
	})
}

// TestStopWhileWaiting tells an agent to end that waits for an API server.
func TestStopWhileWaiting(t *testing.T) {
	t.Parallel()
	kubeconfig := writeFile(t, filepath.Join(t.TempDir(), "kubeconfig"), fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "https://127.0.0.1:%d"}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
users: [{name: none, user: {}}]
current-context: none
`, freePort(t)))
	p := proctest.Start(t, "node-cache", exec.Command(nodeCache, "agent", "--config-map", "kube-system/node-cache", "--kubeconfig", kubeconfig))
	proctest.Eventually(t, time.Minute, "it says what it waits for", func() bool {
		return strings.Contains(p.Stderr.String(), "configuration source unreadable")
	})
	p.Signal(syscall.SIGTERM)
	if err := p.Wait(t, time.Minute); err != nil {
		t.Errorf("ended with %v, want a clean exit", err)
	}
	if log := p.Stderr.String(); !strings.Contains(log, "connection refused") || strings.Count(log, "\n") != 1 {
		t.Errorf("stderr:\n%s", log)
	}
}

// configVariants are the configurations that the test below swaps in: good ones that change what a reload can change,
// with a broken one behind each.
func configVariants(s settings, nsd, other string) []string {
	with := func(to []string, more string) string {
		v := s
		v.to, v.more = to, more
		return v.yaml()
	}
	return []string{
		with([]string{nsd}, "cache: {size: 32Mi, minTTL: 2s}"),
		"listen: {addresses: [127.0.0.1",
		with([]string{other, nsd}, "limits: {inflight: 2048, deadline: 3s}"),
		with([]string{nsd}, "cache: {sise: 32Mi}"),
		with([]string{"tcp://" + nsd}, "cache: {size: 64Mi, prefetch: {hits: 0}}"),
		with([]string{"nowhere"}, "cache: {size: 0}"),
		with([]string{nsd, other}, "log: {level: warn}"),
		strings.Repeat("\x00", 4096),
	}
}

// TestMountsUnderLoad runs dnsperf at full load while both folders are swapped as the kubelet does, by turns between good
// and broken files, and with the last good configuration written each time. No query is lost.
func TestMountsUnderLoad(t *testing.T) {
	length := proctest.OrdinaryOrSoak(5*time.Second, 15*time.Second)
	proctest.FindProgram(t, "dnsperf", "dnsperf")
	nsd, other := startNSD(t), startNSD(t)
	s := localSettings(t, nsd.addr)
	m, dns := newConfigMapMount(t), newConfigMapMount(t)
	m.mustPublish(t, map[string]string{"node-cache.yaml": s.yaml()})
	dns.mustPublish(t, nil)
	a := launchFrom(t, s, m, "--kube-dns", dns.dir, "--last-good", t.TempDir())
	texts := configVariants(s, nsd.addr, other.addr)
	stubs := []string{fmt.Sprintf(`{"wild.e2e.test": [%q]}`, other.addr), fmt.Sprintf(`{"wild.e2e.test": [%q]}`, nsd.addr)}

	stop, swapped := make(chan struct{}), make(chan struct{})
	var took []time.Duration
	var problems []string
	go func() {
		defer close(swapped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
			swap := func() error { return m.publish(map[string]string{"node-cache.yaml": texts[n/2%len(texts)]}) }
			if n%2 == 1 {
				swap = func() error { return dns.publish(map[string]string{"stubDomains": stubs[n/2%len(stubs)]}) }
			}
			late, err := a.reloadTime(swap)
			if err != nil {
				problems = append(problems, fmt.Sprintf("swap %d: %v", n, err))
			}
			if late > 0 {
				took = append(took, late)
			}
		}
	}()
	l := dnsperf(t, a.addr, mixedNames(t), length)
	close(stop)
	<-swapped
	if len(took) == 0 || len(problems) > 0 {
		t.Fatalf("%d swaps, problems: %q", len(took), problems)
	}
	slices.Sort(took)
	t.Attr("mounts", fmt.Sprintf("%s, with %d swaps, each noticed after %s at the median and %s at most", l, len(took), took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond)))
	if l.lost > 0 || l.completed == 0 || !strings.HasSuffix(l.codes, "(100.00%)") || !strings.HasPrefix(l.codes, "NOERROR ") {
		t.Errorf("%s, %s, want none lost and NOERROR only", l, l.codes)
	}
}

// reloadTime makes a change and gives the time until the agent has applied or refused what there is then; 0 while the file is
// bad and a change of the other folder makes no difference.
func (a *agent) reloadTime(change func() error) (time.Duration, error) {
	before, err := a.configNow()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := change(); err != nil {
		return 0, err
	}
	for {
		now, err := a.configNow()
		took := time.Since(began)
		switch {
		case err != nil:
			return 0, err
		case now != before:
			return took, nil
		case before.LastError != "" && took > time.Second:
			return 0, nil
		case took > 10*time.Second:
			return 0, fmt.Errorf("not noticed after %s", took)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// configNow is what tells one configuration from the next.
type configNow struct {
	Generation, Refused int
	LastError           string
}

func (a *agent) configNow() (configNow, error) {
	var page struct{ Config configNow }
	body, err := a.Page("/status")
	if err == nil {
		err = json.Unmarshal([]byte(body), &page)
	}
	return page.Config, err
}
