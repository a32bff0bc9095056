// SPDX-License-Identifier: Apache-2.0

// Command kubectl-node_cache is the kubectl plugin `kubectl node-cache`, which shows, asks and flushes the agents of the nodes.
//
// It runs the agent's own command line in each agent's pod (pods/exec), so that the agents need no new port and no new
// permission, and the API server decides what the user may do. A port-forward cannot do this: it leads to 127.0.0.1 of the
// node, where no agent listens.
//
// A compromised node may send anything: maxReply bounds the bytes, nodeTimeout the time, and cli.ReadJSON the memory. Control
// characters are not printed. The numbers that a node sends cannot be verified.
package main

import (
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // the ways to log in that a kubeconfig may name
	"k8s.io/klog/v2"

	"github.com/nodecache/node-cache/pkg/cli"
)

// version is set by the linker.
var version = "dev"

func main() {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // client-go logs each connection that ends
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program except the exit.
func run(args []string, stdout, stderr io.Writer) int {
	return cli.Run(rootCommand(), args, stdout, stderr, cli.Report)
}

func rootCommand() *cobra.Command {
	c := &cluster{timeout: nodeTimeout}
	root := &cobra.Command{
		Use:         "kubectl-node_cache",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl node-cache"},
		Short:       "Show and ask the node-cache agents of the nodes, and flush their caches",
		Long: `Show and ask the node-cache agents of the nodes, and flush their caches. Each command runs
/node-cache in the agents' pods, as "kubectl exec" does. You need these permissions in the
namespace of the agents: get daemonsets, list pods, get and create pods/exec; preflight
needs others, and no agents.

Exit code 0: every agent did it; 1: one did not, or an error; 2: invalid command line.`,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig `FILE`; default: the variable KUBECONFIG, or ~/.kube/config")
	flags.StringVar(&c.context, "context", "", "`CONTEXT` in the kubeconfig; default: the current one")
	flags.StringVarP(&c.namespace, "namespace", "n", "kube-system", "`NAMESPACE` of the agents")
	return cli.Root(root, version, preflightCommand(c), statusCommand(c), topCommand(c), queryCommand(c), watchCommand(c), pageCommand(c), doctorCommand(c), flushCommand(c), waitCommand(c), offCommand(c), onCommand(c))
}
