// SPDX-License-Identifier: Apache-2.0

// Command kube is the Kubernetes programs the tests and the benchmarks run, in one binary, chosen by its first argument.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
)

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	var command *cobra.Command
	switch os.Args[1] {
	case "kube-apiserver":
		command = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		command = controllers.NewControllerManagerCommand()
	case "kube-proxy":
		command = proxy.NewProxyCommand()
	default:
		usage()
	}
	command.SetArgs(os.Args[2:])
	os.Exit(cli.Run(command))
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: kube kube-apiserver|kube-controller-manager|kube-proxy [FLAG]...")
	os.Exit(2)
}
