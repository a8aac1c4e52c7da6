"""Nets, trained for two steps and recorded by whichever msprobe is installed: it runs in every environment.

python train_net.py conv|encoder|quirks|caught --level L1 --task statistics --summary md5 --out DIR
                    [--perturb 0.01] [--extra JSON] [--plain]
"""

import argparse
import json
import os
import zlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Conv(nn.Module):
    """A small image classifier: convolutions, normalisation, pooling, a skip connection, two resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.point = nn.Conv2d(8, 8, 1, bias=False)
        self.norm = nn.GroupNorm(2, 8)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = F.gelu(self.norm(self.point(self.deep(x)))) + x
        small = F.max_pool2d(y, 2)
        large = F.interpolate(small, scale_factor=2.0, mode="bilinear", align_corners=False)
        both = torch.cat([y, large], dim=1)
        pooled = F.adaptive_avg_pool2d(both, 1).flatten(1)
        return self.head(F.leaky_relu(pooled, 0.1))


class Encoder(nn.Module):
    """Words through an LSTM and a transformer's encoder layer, with attention of the module's own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, activation="gelu")
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, words: Tensor) -> Tensor:
        x, (_, memory) = self.lstm(self.words(words))
        x = self.layer(x)
        y, _ = self.attention(x, x, x)
        x = self.norm(x + y)
        weights = torch.softmax(torch.bmm(x, memory.permute(1, 2, 0)) / 4.0, dim=1)
        return self.head((x * weights).mean(dim=1))


class Quirks(nn.Module):
    """Things that an existing release records in another way than they happened."""

    def __init__(self) -> None:
        super().__init__()
        # batch_first asks `query is key`; the layer binds F.relu early; dropout of nothing returns its input.
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.linear = nn.Linear(16, 16)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        x = checkpoint(lambda y: torch.tanh(self.linear(y)), x, use_reentrant=False)
        x = self.relu(F.linear(x, self.linear.weight))
        huge = torch.mul(torch.full((3,), 1e300, dtype=torch.float64), 1.0)
        whole = torch.add(torch.full((3,), 2**60 + 1), 0)
        typed = whole.to(torch.float64)
        return self.head(x.mean(dim=1) + 0 * typed[0].float() + 0 * huge[0].log().float())


class Caught(nn.Module):
    """A call that fails, and a net that goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x).mean(dim=1)
        try:
            x = torch.matmul(x, torch.zeros(3))
        except RuntimeError:  # the shapes do not fit
            x = torch.sin(x)
        return self.head(x)


NETS = {"conv": Conv, "encoder": Encoder, "quirks": Quirks, "caught": Caught}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("net", choices=list(NETS))
    parser.add_argument("--level", default="L1")
    parser.add_argument("--task", default="statistics")
    parser.add_argument("--summary", default="statistics")
    parser.add_argument("--out", required=True)
    parser.add_argument("--perturb", type=float, default=0.0)
    parser.add_argument("--extra", default="{}")
    parser.add_argument("--plain", action="store_true", help="train without recording")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    task = {"scope": [], "list": [], "data_mode": ["all"]}
    if asked.task == "statistics":
        task["summary_mode"] = asked.summary
    config = {"task": asked.task, "dump_path": asked.out, "level": asked.level, asked.task: task}
    path = asked.out.rstrip("/") + "_config.json"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640), "w") as file:
        json.dump({**config, **json.loads(asked.extra)}, file)

    from msprobe.pytorch import PrecisionDebugger, seed_all

    seed_all(1234, mode=True)
    debugger = PrecisionDebugger(config_path=path)
    net = NETS[asked.net]()
    if asked.perturb:
        net.head.weight.detach().numpy()[0, 0] += asked.perturb
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for step in range(2):
        chance = torch.Generator().manual_seed(step)
        data = {
            "conv": torch.randn(4, 3, 8, 8, generator=chance),
            "encoder": torch.randint(0, 20, (4, 6), generator=chance),
        }.get(asked.net, torch.randn(4, 6, 16, generator=chance))
        target = torch.randint(0, 5, (4,), generator=chance)
        if not asked.plain:
            debugger.start(model=net)
        loss = F.cross_entropy(net(data), target)
        loss.backward()
        if not asked.plain:
            debugger.stop()
            debugger.step()
        optimizer.step()
        optimizer.zero_grad()
    parameters = b"".join(parameter.detach().numpy().tobytes() for parameter in net.parameters())
    print(f"parameters {zlib.crc32(parameters):08x}")


if __name__ == "__main__":
    main()
