// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/proctest"
)

// A cluster starts, runs a pod, answers it, and leaves nothing on the machine that ran it.
func TestCluster(t *testing.T) {
	if why := Missing(); why != "" {
		t.Skip(why)
	}
	before := hostState(t)
	began := time.Now()
	c, err := Launch(t.Context(), t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	proctest.Figure(t, "a node with CoreDNS after %s", time.Since(began).Round(10*time.Millisecond))
	runsPod(t, c)
	restartsKubelet(t, c)
	spaces := c.spaces(t)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if left := processesIn(t, spaces); len(left) > 0 {
		t.Errorf("processes that are left: %v", left)
	}
	if diff := cmp.Diff(before, hostState(t)); diff != "" {
		t.Errorf("the machine (-before +after):\n%s", diff)
	}
}

func runsPod(t *testing.T, c *Cluster) {
	t.Helper()
	steps := [][]string{
		{"run", "one", "--image=" + BusyboxImage, "--restart=Never", "--command", "--", "sleep", "3600"},
		{"wait", "--for=condition=Ready", "--timeout=60s", "pod/one"},
		{"exec", "one", "--", "nslookup", "kubernetes.default.svc.cluster.local"},
		{"exec", "one", "--", "nslookup", "www.example.com"},
	}
	for _, args := range steps {
		if out, err := c.Kubectl(t.Context(), "", args...); err != nil {
			t.Errorf("%v\n%s\n%s", err, out, c.LogTails())
			return
		}
	}
}

// restartsKubelet does so as a user of the node does.
func restartsKubelet(t *testing.T, c *Cluster) {
	t.Helper()
	before := c.Nodes[0].kubelets(t)
	if out, err := c.Nodes[0].Output(t.Context(), "systemctl", "restart", "kubelet"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	after := c.Nodes[0].kubelets(t)
	if len(before) != 1 || len(after) != 1 || before[0] == after[0] {
		t.Errorf("kubelets: %v, and after a restart %v", before, after)
	}
}

// kubelets are the numbers of the processes that are the node's kubelet.
func (n *Node) kubelets(t *testing.T) []string {
	t.Helper()
	// A process may end before its turn comes, which grep takes for a failure.
	out, err := n.Output(t.Context(), "sh", "-c", `grep -lsz '^--config=/var/lib/kubelet' /proc/[0-9]*/cmdline || true`)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(out)
}

// What a test that is killed leaves are control groups, and the next cluster removes these.
func TestKilledTestLeavesNoProcess(t *testing.T) {
	if why := Missing(); why != "" {
		t.Skip(why)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	victim := exec.CommandContext(t.Context(), self)
	victim.Env = append(os.Environ(), victimFolder+"="+t.TempDir())
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	spaces := spacesOf(t, victim.Process.Pid)
	running := len(processesIn(t, spaces))
	if killed := victim.Process.Kill(); killed != nil {
		t.Fatal(killed)
	}
	_ = victim.Wait() // it was killed
	if err != nil || line != "launched: <nil>\n" || len(spaces) != 2 || running < 8 {
		t.Fatalf("the victim: %q, %v, %d machines, %d processes", line, err, len(spaces), running)
	}
	proctest.Eventually(t, 10*time.Second, "its processes end", func() bool { return len(processesIn(t, spaces)) == 0 })

	group := fmt.Sprintf("%s%d-1", cgroupPrefix, victim.Process.Pid)
	if !slices.Contains(ourGroups(t), group) {
		t.Errorf("it left no group %s", group)
	}
	if err := sweepCgroups(); err != nil {
		t.Error(err)
	}
	if slices.Contains(ourGroups(t), group) {
		t.Errorf("group %s stays", group)
	}
	proctest.Figure(t, "%d processes ended with the one that was killed", running)
}

// hostState is what a cluster might leave behind on the machine that ran it.
func hostState(t *testing.T) map[string][]string {
	t.Helper()
	read := func(path string) []string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(string(text), "\n")
	}
	var links []string
	for _, line := range read("/proc/net/dev") {
		name, _, _ := strings.Cut(line, ":")
		links = append(links, strings.TrimSpace(name))
	}
	slices.Sort(links)
	return map[string][]string{
		"links": links, "mounts": read("/proc/self/mountinfo"), "groups": ourGroups(t),
		"settings": slices.Concat(read("/proc/sys/vm/overcommit_memory"), read("/proc/sys/kernel/panic")),
	}
}

// ourGroups are the control groups of clusters of this process, and of its victims.
func ourGroups(t *testing.T) []string {
	t.Helper()
	trees, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tree := range trees {
		found, err := filepath.Glob(filepath.Join(tree, cgroupPrefix+"*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			names = append(names, filepath.Base(path))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// spaces are the process namespaces of the machines.
func (c *Cluster) spaces(t *testing.T) []string {
	t.Helper()
	return spacesOf(t, os.Getpid())
}

// spacesOf are the process namespaces of machines that a process runs.
func spacesOf(t *testing.T, pid int) []string {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var spaces []string
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for child := range strings.FieldsSeq(string(text)) {
			number, err := strconv.Atoi(child)
			if err != nil {
				t.Fatal(err)
			}
			if space := spaceOf(number); space != "" && space != spaceOf(os.Getpid()) {
				spaces = append(spaces, space)
			}
		}
	}
	return spaces
}

// spaceOf names the process namespace of a process; it is empty for one that has ended.
func spaceOf(pid int) string {
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return ""
	}
	return name
}

// processesIn are the processes in namespaces.
func processesIn(t *testing.T, spaces []string) []string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range all {
		pid, err := strconv.Atoi(filepath.Base(path))
		if err == nil && slices.Contains(spaces, spaceOf(pid)) {
			name, _ := os.ReadFile(path + "/comm")
			found = append(found, fmt.Sprintf("%d %s", pid, strings.TrimSpace(string(name))))
		}
	}
	return found
}
