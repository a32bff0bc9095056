// SPDX-License-Identifier: Apache-2.0

// Command agnhost has the subcommands of Kubernetes' test image that its DNS specs use.
package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/test/images/agnhost/dns"
	"k8s.io/kubernetes/test/images/agnhost/netexec"
	"k8s.io/kubernetes/test/images/agnhost/pause"
	testwebserver "k8s.io/kubernetes/test/images/agnhost/test-webserver"
)

func main() {
	command := &cobra.Command{Use: "agnhost"}
	command.AddCommand(dns.CmdDNSSuffix, dns.CmdDNSServerList, netexec.CmdNetexec, pause.CmdPause, testwebserver.CmdTestWebserver)
	os.Exit(cli.Run(command))
}
