//go:build linux

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/internal/vault"
	"github.com/agentguard/agentguard/supervisor"
)

func newKeys() *cobra.Command {
	c := &cobra.Command{
		Use: "keys", Short: "Show and change the key that vouches for the records of this host",
		Long: "The host's key certifies the key of each run and signs the host's log. It is made at the first\n" +
			"run, and only root can read it. With its public half a record is verified anywhere.",
	}
	c.AddCommand(newKeysShow(), newKeysExport(), newKeysRotate())
	return c
}

// withVault opens the vault for one command.
func withVault(state string, do func(*vault.Vault) error) error {
	s, v, err := openVouched(state)
	if err != nil {
		return err
	}
	defer s.Close()
	defer v.Close()
	return do(v)
}

func keyFlag(c *cobra.Command) *bool {
	return c.Flags().Bool("json", false, "one JSON object a line: name, key")
}

// printKeys prints public keys, one a line of text.
func printKeys(text string, asJSON bool) error {
	for key := range strings.Lines(text) {
		key = strings.TrimSuffix(key, "\n")
		var err error
		if name, _, _ := strings.Cut(key, "+"); asJSON {
			err = jsonLine(map[string]string{"name": name, "key": key})
		} else {
			_, err = fmt.Println(key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func newKeysShow() *cobra.Command {
	c := &cobra.Command{Use: "show", Short: "Print the public key that signs now, as a note verifier key", Args: cobra.NoArgs, Example: "  agentguard keys show"}
	state, asJSON := stateFlag(c), keyFlag(c)
	c.RunE = func(*cobra.Command, []string) error {
		return withVault(*state, func(v *vault.Vault) error {
			k, err := v.Key(vault.KeyName())
			if err != nil {
				return err
			}
			defer k.Erase()
			return printKeys(k.Public(), *asJSON)
		})
	}
	return c
}

func newKeysExport() *cobra.Command {
	c := &cobra.Command{
		Use: "export", Short: "Print all public keys that this host has had, one a line, the newest last", Args: cobra.NoArgs,
		Long:    "export prints what trace verify --key takes: records of before a rotation need the key of then.",
		Example: "  agentguard keys export >host.pub",
	}
	state, asJSON := stateFlag(c), keyFlag(c)
	c.RunE = func(*cobra.Command, []string) error {
		return withVault(*state, func(v *vault.Vault) error {
			text, err := v.PublicText()
			if err != nil {
				return err
			}
			return printKeys(text, *asJSON)
		})
	}
	return c
}

func newKeysRotate() *cobra.Command {
	c := &cobra.Command{
		Use: "rotate", Short: "Make a new key for this host, and print its public half", Args: cobra.NoArgs, Example: "  agentguard keys rotate",
		Long: "rotate makes a new key. The old private key is overwritten; its public half stays, so that what it\n" +
			"signed can be verified, and the host's log says when the key changed. Live runs end with the old one.",
	}
	state, asJSON := stateFlag(c), keyFlag(c)
	c.RunE = func(*cobra.Command, []string) error {
		if who, err := caller(); err != nil || who.Sudo {
			return &supervisor.Refusal{What: "the host's key is root's own", Err: err, Remedy: "call as root itself, not by sudo"}
		}
		return withVault(*state, func(v *vault.Vault) error {
			k, err := v.Rotate(vault.KeyName())
			if err != nil {
				return err
			}
			defer k.Erase()
			return printKeys(k.Public(), *asJSON)
		})
	}
	return c
}
