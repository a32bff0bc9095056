// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/source"
)

// sourceFlags say where the configuration comes from.
type sourceFlags struct {
	file, configMap, kubeconfig, kubeDNS, lastGood string
}

// add adds the flags to the command of an agent or a resolver.
func (f *sourceFlags) add(cmd *cobra.Command) {
	flags, who := cmd.Flags(), cmd.Name()
	flags.StringVar(&f.file, "config", "", "configuration file; `FILE` is followed while the "+who+" runs")
	flags.StringVar(&f.configMap, "config-map", "", "ConfigMap `NAMESPACE/NAME` that has the configuration as its key "+source.Key+"; it is followed through the API, in place of a file")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "credentials for --config-map; without `FILE` those of the pod's service account")
	flags.StringVar(&f.kubeDNS, "kube-dns", "", "mounted kube-dns ConfigMap; its stub domains and nameservers take the place of those in the configuration, and `FOLDER` is followed")
	flags.StringVar(&f.lastGood, "last-good", "", "keeps the last configuration put to work in `FOLDER`, and begins with it when there is no good one at the start")
}

// given says whether the configuration comes from anywhere.
func (f *sourceFlags) given() bool { return f.file != "" || f.configMap != "" }

// options fills in what the flags and the pod's environment say.
func (f *sourceFlags) options(o *agent.Options) error {
	switch {
	case f.file != "" && f.configMap != "":
		return &usageError{errors.New("--config and --config-map exclude each other: the configuration is in one place")}
	case f.kubeconfig != "" && f.configMap == "":
		return &usageError{errors.New("--kubeconfig is for --config-map, which is missing; the configuration has cluster.kubeconfig for the cluster's names")}
	case f.kubeDNS != "" && !f.given():
		return &usageError{errors.New("--kube-dns is laid over a configuration: --config or --config-map is missing")}
	case f.lastGood != "" && !f.given():
		return &usageError{errors.New("--last-good is for a configuration that may go bad: --config or --config-map is missing")}
	}
	o.File = f.file
	o.Source = agent.Source{
		Kubeconfig: f.kubeconfig, KubeDNS: f.kubeDNS, LastGood: f.lastGood,
		Pod: source.Pod{
			Namespace: os.Getenv("POD_NAMESPACE"), Name: os.Getenv("POD_NAME"), UID: os.Getenv("POD_UID"),
			Node: os.Getenv("NODE_NAME"),
		},
	}
	if f.configMap == "" {
		return nil
	}
	object, err := source.ParseObject(f.configMap)
	if err != nil {
		return &usageError{fmt.Errorf("--config-map: %w", err)}
	}
	o.Source.ConfigMap = object
	return nil
}

// unlessEnded is err, but nil for a program that was told to end while it waited for its configuration, or for its sockets.
func unlessEnded(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
