// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"time"

	"github.com/spf13/cobra"
)

// QueryFlags are the flags of query.
type QueryFlags struct {
	Server  string // IP[:PORT] of the agent; empty: the agent on its host
	TCP     bool
	Explain bool
	Pod     string // IP of the pod whose answer is explained; empty: the sender's
	Timeout time.Duration
	Output  string
}

// Add adds the flags to a command.
func (f *QueryFlags) Add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Server, "server", "", "`IP[:PORT]` of the agent; default: the agent on this host, and port 53 for an IP alone")
	flags.BoolVar(&f.TCP, "tcp", false, "ask over TCP instead of UDP")
	flags.BoolVar(&f.Explain, "explain", false, "show where the answer is from")
	flags.StringVar(&f.Pod, "pod", "", "`IP` of a pod of this node: explain the answer that this pod gets, with its search path; implies --explain")
	flags.DurationVar(&f.Timeout, "timeout", 5*time.Second, "the longest `TIME` to wait for the response, such as 500ms")
	AddOutput(cmd, flags, &f.Output)
}
