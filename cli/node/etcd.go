package node

import (
	"cleat/cli/hint"
	"cleat/overlay/registry"

	"github.com/spf13/pflag"
)

// etcdFlags say which etcd is the registry.
type etcdFlags struct {
	urls          []string
	ca, cert, key string
}

func (f *etcdFlags) add(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.urls, "etcd", nil, "the registry is in an etcd at `URL`, which no host of the cluster runs; can be repeated")
	flags.StringVar(&f.ca, "etcd-ca", "", "`FILE` with the certificates of the authority of --etcd")
	flags.StringVar(&f.cert, "etcd-cert", "", "`FILE` with this host's certificate for --etcd")
	flags.StringVar(&f.key, "etcd-key", "", "`FILE` with the key of --etcd-cert")
}

// external returns the etcd; nil if there is none.
func (f *etcdFlags) external() *registry.External {
	if len(f.urls) == 0 {
		return nil
	}
	return &registry.External{URLs: f.urls, CA: f.ca, Cert: f.cert, Key: f.key}
}

func (f *etcdFlags) check() error {
	if f.external() == nil && f.ca+f.cert+f.key != "" {
		return hint.With(hint.Usagef("--etcd-ca, --etcd-cert and --etcd-key need --etcd"), "e.g. --etcd https://192.0.2.9:2379")
	}
	return nil
}
