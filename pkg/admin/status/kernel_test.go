// SPDX-License-Identifier: Apache-2.0

package status

import (
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/kernelhits"
)

func TestKernelProblems(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		kernel Kernel
		want   []string
	}{
		{"on", Kernel{State: KernelOn, Stats: kernelhits.Stats{Full: 3}, FullAgo: new(61.0)}, nil},
		{"not supported, which auto allows", Kernel{State: "not supported: missing capability: BPF"}, nil},
		{"an interface without the program", Kernel{State: KernelOn, Failed: []string{"veth1: device busy", "veth2: too many"}}, []string{
			"2 interfaces without hits, the first is veth1: device busy",
		}},
		{"full", Kernel{State: KernelOn, Stats: kernelhits.Stats{Capacity: 64}, FullAgo: new(59.0)}, []string{
			"its 64 answers are all in use: the agent answers other names itself",
		}},
	} {
		var list problems
		list.addKernel(&tt.kernel)
		var got []string
		for _, p := range list {
			if got = append(got, p.What); p.Where != "kernel" || p.Hint == "" {
				t.Errorf("%s: %+v", tt.name, p)
			}
		}
		assert.Same(t, tt.name, tt.want, got)
	}
}
