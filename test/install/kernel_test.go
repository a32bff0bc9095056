// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
)

// kernelStatus returns what an agent says of the hits in the kernel.
func (b *harness) kernelStatus(t *testing.T, pod *corev1.Pod) (k status.Kernel) {
	t.Helper()
	text := b.kubectl(t, "-n", "kube-system", "exec", pod.Name, "--", "/node-cache", "kernel", "status", "--output=json")
	if err := json.Unmarshal([]byte(text), &k); err != nil {
		t.Fatalf("%s: %v\n%s", pod.Name, err, text)
	}
	return k
}

// awaitKernelHits waits until the kernels of both nodes answer clients that ask.
func (b *harness) awaitKernelHits(t *testing.T) {
	t.Helper()
	for i, pod := range b.agents(t) {
		var first, k status.Kernel
		b.eventually(t, "the kernel answers on "+pod.Spec.NodeName, func() bool {
			k = b.kernelStatus(t, &pod)
			if first.Capacity == 0 {
				first = k
			}
			return k.State == status.KernelOn && k.Hits > first.Hits
		})
		programs := b.attachedPrograms(t, b.Nodes[i])
		if k.Interfaces == 0 || len(k.Failed) > 0 || len(programs) < 2 {
			t.Errorf("%s: %+v, programs %v", pod.Name, k, programs)
		}
		b.programs = append(b.programs, programs...)
		proctest.Figure(t, "%s: %d queries answered in the kernel, %d interfaces", pod.Spec.NodeName, k.Hits, k.Interfaces)
	}
}

// attachedPrograms returns the BPF programs at the interfaces of a node. Agents attach them by links.
func (b *harness) attachedPrograms(t *testing.T, n *kubenode.Node) (ids []ebpf.ProgramID) {
	t.Helper()
	err := n.Do(func() error {
		devices, err := netlink.LinkList()
		for _, dev := range devices {
			for _, side := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
				found, queryErr := link.QueryPrograms(link.QueryOptions{Target: dev.Attrs().Index, Attach: side})
				if queryErr != nil {
					err = errors.Join(err, fmt.Errorf("%s: %w", dev.Attrs().Name, queryErr))
					continue
				}
				for _, p := range found.Programs {
					ids = append(ids, p.ID)
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
