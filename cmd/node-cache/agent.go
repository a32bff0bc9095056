// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/capabilities"
)

func agentCommand() *cobra.Command {
	var from sourceFlags
	cmd := &cobra.Command{
		Use:   "agent [--config FILE | --config-map NAMESPACE/NAME]",
		Short: "Serve DNS on this node",
		Long: `Serve DNS on this node until SIGTERM or SIGINT.

Without a file the agent uses built-in defaults, which need no privileges: port 1053 of
127.0.0.1, and upstreams from /etc/resolv.conf. A file is watched: valid changes apply
at once, an invalid file is refused and the running configuration stays. The same
holds for a ConfigMap, read through the API or mounted as a folder. If the pod's
identity is set (POD_NAME, POD_NAMESPACE, POD_UID), a refusal is also an Event.

Logs go to standard error.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			ignoreSIGPIPE()
			options := agent.Options{Version: version, Log: cmd.ErrOrStderr(), DropCapabilities: dropCapabilities}
			if err := from.options(&options); err != nil {
				return err
			}
			a, err := agent.NewContext(ctx, options)
			if err != nil {
				return unlessEnded(err)
			}
			if err := a.Listen(ctx); err != nil {
				return unlessEnded(err)
			}
			if !from.given() {
				printWelcome(cmd.OutOrStdout(), a)
			}
			return a.Run(ctx)
		},
	}
	from.add(cmd)
	return cmd
}

// ignoreSIGPIPE lets this process continue when the reader of its log is gone. Without it the next log line
// would end the process.
func ignoreSIGPIPE() { signal.Ignore(syscall.SIGPIPE) }

// dropCapabilities drops all capabilities of this process except keep.
func dropCapabilities(keep []capabilities.Capability) error { return capabilities.Drop(keep...) }

// printWelcome tells a user who starts the agent without a file what to type next.
func printWelcome(out io.Writer, a *agent.Agent) {
	addr, program := a.Addrs()[0], os.Args[0]
	_, _ = fmt.Fprintf(out, "node-cache %s answers DNS on %s, UDP and TCP. In another terminal:\n", version, addr)
	_, _ = fmt.Fprintf(out, "  dig @%s -p %d example.com\n", addr.Addr(), addr.Port())
	_, _ = fmt.Fprintf(out, "  %s query --server %s example.com\n", program, addr)
	if admin := a.AdminAddr(); admin.IsValid() {
		_, _ = fmt.Fprintf(out, "  curl 'http://%s/status?format=text'    shows its status\n", admin)
		_, _ = fmt.Fprintf(out, "  curl http://%s/metrics                 shows its metrics\n", admin)
	}
	_, _ = fmt.Fprintf(out, "It uses built-in defaults; `%s check --print` shows them. Ctrl-C stops it.\n", program)
}
