// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
)

// TestPods has the kernel answer pods that were there before the agent.
func TestPods(t *testing.T) {
	for _, hook := range hooks() {
		t.Run(hook, func(t *testing.T) {
			n := newNode(t, hook, nodetest.Options{})
			for _, pod := range n.Pods {
				n.await(t, pod, byKernel)
			}
			assert.Equal(t, "hook", hook, n.Hook())
			for name, p := range map[string]interface {
				Info() (*ebpf.ProgramInfo, error)
			}{"answer_hit": n.objects.AnswerHit, "permit_client": n.objects.PermitClient} {
				info, err := p.Info()
				assert.NoError(t, err)
				verified, _ := info.VerifiedInstructions()
				t.Logf("%s: the verifier processed %d instructions", name, verified)
			}
		})
	}
}
